// The lines that a job's processor and runner said.
import { get } from "../api.js";
import { h, section } from "../dom.js";
import { clock } from "../words.js";

export async function lines(job, signal) {
  const found = await get(`/v1/jobs/${job.id}/logs`, { signal });
  if (!found.lines.length) return null;
  const text = found.lines.map((line) => `${clock(line.at)} ${line.attempt} ${line.source} ${line.level.padEnd(7)} ${line.text}`);
  return section("Lines",
    h("p", { class: "quiet" }, "What the processor and the runner said: time, attempt, source, level.", found.cut ? ` ${found.cut} lines were left out.` : ""),
    h("pre", { class: "lines", tabindex: "0" }, text.join("\n")));
}
