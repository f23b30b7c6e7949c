// The result of a job: its answer, then one viewer of its files and the table beside them, then raw JSON.
import { get, reachable } from "../api.js";
import { fill, h, section } from "../dom.js";
import { FINAL } from "../words.js";
import { answer, foundNothing, partsOf, viewsOf } from "./answer.js";
import { partial } from "./partial.js";

const TABLE = { fits: (parts, files) => files.some((file) => /\.csv$/i.test(file.name) && file.kind === "artifact"), load: () => import("./rows.js") };
const PICTURE = /\.(png|jpe?g|webp|gif)$/i;

/** Viewers of files in order: the first whose `fits` is true shows them, before the answer if it is `first`: then it is the answer. */
const VIEWERS = [
  { first: true, fits: (parts, files) => files.some(isRaster), load: () => import("../map/viewer.js") },
  { first: true, fits: (parts, files) => parts.some(({ form }) => form === "passages") && inputs(files, /\.(wav|flac|mp3|ogg|m4a|webm|opus|mp4)$/i).length > 0, load: () => import("./audio.js") },
  { fits: (parts, files) => files.some((file) => file.kind === "artifact" && /\.(mp4|webm)$/i.test(file.name)), load: () => import("./video.js") },
  { first: true, fits: (parts, files) => files.some((file) => file.kind === "artifact" && PICTURE.test(file.name)) && parts.length > 0 && parts.every(({ form }) => form === "rows"), load: () => import("./image.js") },
  { fits: (parts, files) => files.some((file) => PICTURE.test(file.name)), load: () => import("./image.js") },
  TABLE,
];

export function isRaster(file) {
  return file.kind === "artifact" && /\.tiff?$/i.test(file.name);
}

function inputs(files, pattern) {
  return files.filter((file) => file.kind === "input" && pattern.test(file.name));
}

/** Return the section of a job's result: `update(job)` after each change, `event(event)` for what streams. */
export function result(signal) {
  const inner = h("div", { class: "stack" });
  const element = section("Result", inner);
  const title = element.querySelector("h2");
  element.hidden = true;
  const early = partial();
  let drawn = false;

  async function update(job) {
    if (drawn || job.status !== "succeeded") {
      if (drawn) return;
      fill(title, "Result so far");
      if (FINAL.has(job.status)) element.hidden = !early.some();
      return;
    }
    drawn = true;
    element.hidden = false;
    fill(title, "Result");
    const { links, tiles_expire_at: expires } = await get(`/v1/jobs/${job.id}/links`, { signal });
    const files = links.map((link) => ({ ...link, url: reachable(link.url), expires }));
    const views = job.output?.json ? await viewsOf(job.model, signal) : [];
    const parts = partsOf(views, job.output?.json ?? {});
    const nothing = !job.output?.text && foundNothing(views, job.output?.json ?? {});
    const viewer = VIEWERS.find((each) => each.fits(parts, files));
    const shown = viewer ? await (await viewer.load()).view(job, files, signal, parts) : null;
    // A map of zones has a table of them, too.
    const beside = viewer && viewer !== TABLE && TABLE.fits(parts, files) ? await (await TABLE.load()).view(job, files, signal) : null;
    const said = [text(job), nothing && h("p", {}, "Nothing was found."), answer(parts)];
    if (!signal.aborted) fill(inner, viewer?.first ? [shown, beside, said] : [said, shown, beside], raw(job, shown || parts.length || nothing));
  }

  return {
    element,
    update: (job) => update(job).catch((error) => { if (!signal.aborted) fill(inner, h("p", { class: "problem", role: "alert" }, error.message)); }),
    event(event) {
      if (drawn || !early.add(event)) return;
      element.hidden = false;
      fill(inner, early.element);
    },
  };
}

function text(job) {
  return job.output?.text ? h("div", { class: "text" }, job.output.text) : null;
}

function raw(job, shown) {
  const data = job.output?.json;
  if (!data || !Object.keys(data).length) return shown || job.output?.text ? null : h("p", { class: "quiet" }, "The result is the artifacts below.");
  const json = h("pre", { class: "json", tabindex: "0" }, JSON.stringify(data, null, 2));
  return shown || job.output?.text ? h("details", {}, h("summary", {}, "Result as JSON"), json) : json;
}
