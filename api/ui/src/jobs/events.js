// The events of a job, newest last, as they arrive.
import { h, section } from "../dom.js";
import { clock } from "../words.js";

const MOST = 500;
const LONG = 160;

export function eventLog() {
  const list = h("ol", { class: "events", tabindex: "0", "aria-label": "Events" });
  const element = section("Events", list);
  element.hidden = true;
  return {
    element,
    add({ type, data }) {
      element.hidden = false;
      const at = data.at && typeof data.at === "string" ? clock(data.at) : "";
      const words = type === "job.preview" ? `${data.data?.name ?? ""}` : detail(data.data ?? data);
      list.append(h("li", {}, h("time", {}, at), " ", h("code", {}, type), " ", h("span", { class: "quiet" }, words)));
      if (list.children.length > MOST) list.firstChild.remove();
    },
  };
}

function detail(data) {
  const text = Object.entries(data).filter(([, value]) => value !== null && typeof value !== "object").map(([name, value]) => `${name} ${value}`).join(", ");
  return text.length > LONG ? `${text.slice(0, LONG)} ...` : text;
}
