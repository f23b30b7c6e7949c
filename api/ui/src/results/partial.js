// What a running job has made so far: its text, and previews of unfinished images.
import { fill, h } from "../dom.js";

export function partial() {
  const text = h("div", { class: "text", role: "group", "aria-label": "Text so far" });
  const images = h("div", { class: "previews gallery" });
  const element = h("div", {}, text, images);
  const previews = new Map();
  let attempt = 0;
  let said = "";
  let any = false;

  /** Forget what an earlier attempt made. */
  function begin(number) {
    [attempt, said] = [number, ""];
    previews.clear();
    fill(text);
    fill(images);
  }
  function add({ type, data: event }) {
    const data = event.data ?? event;
    if (type !== "job.text" && type !== "job.preview") return false;
    if (data.attempt !== attempt) begin(data.attempt);
    if (type === "job.text") {
      // The position counts code points, as Python does.
      said = [...said].slice(0, data.at).join("") + data.text;
      fill(text, said);
    } else {
      const source = `data:${data.content_type};base64,${data.data}`;
      const known = previews.get(data.name);
      if (known) known.src = source; // the element stays, so that nothing jumps
      else {
        previews.set(data.name, h("img", { alt: `Preview of ${data.name}`, src: source }));
        images.append(h("figure", {}, previews.get(data.name), h("figcaption", {}, `${data.name}, not finished`)));
      }
    }
    any = true;
    return true;
  }
  return { element, add, some: () => any };
}
