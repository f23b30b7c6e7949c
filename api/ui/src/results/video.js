// Videos that a job made, to be played.
import { h } from "../dom.js";

const VIDEO = /\.(mp4|webm)$/i;

export function view(job, files) {
  return files.filter((file) => file.kind === "artifact" && VIDEO.test(file.name)).map((file) =>
    h("figure", {}, h("video", { controls: true, src: file.url, preload: "metadata", "aria-label": `The video ${file.name}` }), h("figcaption", {}, file.name)));
}
