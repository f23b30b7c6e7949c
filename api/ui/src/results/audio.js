// A recording with its transcript: a click on a passage plays it.
import { h } from "../dom.js";
import { duration } from "../words.js";

export async function view(job, files, signal, parts) {
  const recording = files.find((file) => file.kind === "input" && file.pointer !== null);
  const player = h("audio", { controls: true, src: recording.url, preload: "metadata", "aria-label": `The recording ${recording.name}` });
  const passages = parts.find(({ form }) => form === "passages").items.map((segment) => {
    const play = h("button", { type: "button", class: "plain", onclick: () => { player.currentTime = segment.start; player.play(); } },
      h("span", { class: "quiet" }, duration(segment.start)), " ", segment.text);
    return { ...segment, play };
  });
  player.addEventListener("timeupdate", () => {
    for (const { start, end, play } of passages) play.classList.toggle("now", start <= player.currentTime && player.currentTime < end);
  });
  return h("div", { class: "transcript" }, player, h("ol", {}, passages.map(({ play }) => h("li", {}, play))));
}
