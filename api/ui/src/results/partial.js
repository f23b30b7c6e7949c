// What a running job has made so far: its text, and previews of unfinished images.
import { fill, h } from "../dom.js";

export function partial() {
  const text = h("div", { class: "text", "aria-label": "Text so far" });
  const images = h("div", { class: "previews" });
  const element = h("div", {}, text, images);
  const previews = new Map();
  let attempt = 0;
  let said = "";
  let any = false;

  function add({ type, data: event }) {
    const data = event.data ?? event;
    if (type === "job.text") {
      if (data.attempt !== attempt) [attempt, said] = [data.attempt, ""];
      // The position counts code points, as Python does.
      said = [...said].slice(0, data.at).join("") + data.text;
      fill(text, said);
    } else if (type === "job.preview") {
      previews.set(data.name, h("img", { alt: `Preview of ${data.name}`, src: `data:${data.content_type};base64,${data.data}` }));
      fill(images, [...previews.values()]);
    } else return false;
    any = true;
    return true;
  }
  return { element, add, some: () => any };
}
