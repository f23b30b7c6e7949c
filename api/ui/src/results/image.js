// Images with their boxes, and masks over the image that they belong to.
import { h, newId } from "../dom.js";

const IMAGE = /\.(png|jpe?g|webp|gif)$/i;
const SVG = "http://www.w3.org/2000/svg";

export async function view(job, files, signal, parts) {
  const made = files.filter((file) => file.kind === "artifact" && IMAGE.test(file.name));
  const given = files.filter((file) => file.kind === "input" && IMAGE.test(file.name));
  const data = job.output?.json ?? {};
  const things = parts.find(({ form, heading }) => form === "boxes" && !heading)?.items ?? [];
  const base = given.length === 1 && (things.length || made.some((file) => /mask/.test(file.name))) ? given[0] : null;
  // The page draws the mask and the boxes over the image itself: the pictures of the same would repeat it.
  const rest = base ? made.filter((file) => !/^(mask|overlay|annotated)\b/.test(file.name)) : made.length ? made : given;
  return [base && await overlay(base, made.find((file) => /^mask/.test(file.name)), things, data), rest.length > 0 && gallery(rest)];
}

function gallery(files) {
  return h("div", { class: "gallery" }, files.map((file) =>
    h("figure", {}, h("img", { src: file.url, alt: file.name, loading: "lazy" }), h("figcaption", {}, file.name))));
}

async function overlay(image, mask, things, data) {
  const id = newId("opacity");
  const over = mask && h("img", { src: mask.url, alt: "", class: "over" });
  const slider = mask && h("input", { id, type: "range", min: "0", max: "100", value: "55", oninput: () => { over.style.opacity = slider.value / 100; } });
  if (over) over.style.opacity = "0.55";
  const boxes = drawn(things, data);
  return h("div", {},
    h("div", { class: "overlay" }, h("img", { src: image.url, alt: `The input ${image.name}` }), over, boxes),
    mask && h("p", {}, h("label", { for: id }, "Opacity of the mask "), slider));
}

/** Return the boxes as a drawing over the image; its size comes from the result. */
function drawn(things, data) {
  const boxed = things.filter((thing) => thing.box);
  if (!boxed.length || !data.width) return null;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${data.width} ${data.height}`);
  svg.setAttribute("class", "boxes");
  svg.setAttribute("aria-hidden", "true");
  const line = Math.max(data.width, data.height) / 300;
  boxed.forEach((thing, index) => {
    const { xmin, ymin, xmax, ymax } = thing.box;
    const rect = document.createElementNS(SVG, "rect");
    for (const [name, value] of Object.entries({ x: xmin, y: ymin, width: xmax - xmin, height: ymax - ymin })) rect.setAttribute(name, value);
    rect.setAttribute("stroke-width", line);
    rect.setAttribute("class", `hue-${index % 6}`);
    const label = document.createElementNS(SVG, "text");
    label.setAttribute("x", xmin + 2 * line);
    label.setAttribute("y", ymin + 7 * line);
    label.setAttribute("font-size", 6 * line);
    label.textContent = thing.label;
    svg.append(rect, label);
  });
  return svg;
}
