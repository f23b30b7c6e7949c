// The latest log lines of a worker, for operators.
import { get, sleep } from "../api.js";
import { fill, h } from "../dom.js";
import { clock } from "../words.js";

export async function show(main, { rest: [id = ""], signal }) {
  const body = h("div");
  const read = async () => {
    const { lines } = await get(`/v1/workers/${encodeURIComponent(id)}/logs`, { signal });
    fill(body, lines.length
      ? h("pre", { class: "lines", tabindex: "0" }, lines.map(({ at, level, text }) => `${clock(at)} ${level.padEnd(7)} ${text}`).join("\n"))
      : h("p", { class: "quiet" }, "The worker has logged nothing yet."));
  };
  await read();
  fill(main, h("p", { class: "crumbs" }, h("a", { href: "#/operate" }, "Operate")), h("h1", {}, "Log of a worker"),
    h("p", { class: "quiet id" }, id), h("p", { class: "quiet" }, "The latest lines: time, level, text. They are kept for an hour after the worker's end."), body);
  while (!signal.aborted) {
    await sleep(5000, signal);
    if (!signal.aborted) await read().catch(() => {});
  }
}
