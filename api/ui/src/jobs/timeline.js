// The timeline of a job: waits, attempts, and the phases of each.
import { h } from "../dom.js";
import { clock, duration } from "../words.js";

/** Return the milliseconds of each phase, in the order of their beginnings: an attempt may enter a phase again. */
export function phaseTimes(parts) {
  const times = new Map();
  for (const [phase, from, to] of parts) times.set(phase, (times.get(phase) ?? 0) + to - from);
  return times;
}

/** Return the bars and their words. */
export function timeline(job) {
  const begin = Date.parse(job.created_at);
  const end = job.completed_at ? Date.parse(job.completed_at) : Date.now();
  const span = Math.max(end - begin, 1);
  const lanes = [];
  let free = begin;
  job.attempts.forEach((attempt, index) => {
    const started = Date.parse(attempt.started_at);
    if (started - free > span / 200) lanes.push(lane(index ? "Wait for the next attempt" : "Wait for a worker", [["waiting", free, started]]));
    const ended = attempt.ended_at ? Date.parse(attempt.ended_at) : end;
    const phases = attempt.phases.map((phase) => [phase.phase, Date.parse(phase.started_at), phase.ended_at ? Date.parse(phase.ended_at) : ended]);
    const outcome = attempt.outcome ?? "running";
    lanes.push(lane(`Attempt ${attempt.number}: ${outcome}`, phases.length ? phases : [["running", started, ended]], attempt.worker));
    free = ended;
  });
  if (job.status === "queued") lanes.push(lane("Waiting now", [["waiting", free, end]]));
  return h("div", { class: "timeline" }, lanes.map((one) => draw(one, begin, span)),
    h("p", { class: "quiet ends" }, h("span", {}, clock(job.created_at)), h("span", {}, job.completed_at ? clock(job.completed_at) : "now")));
}

function lane(name, parts, worker = null) {
  return { name, parts, worker };
}

function draw({ name, parts, worker }, begin, span) {
  const whole = (parts.at(-1)[2] - parts[0][1]) / 1000;
  const bars = parts.map(([phase, from, to]) => {
    const bar = h("span", { class: `bar ${phase}`, title: `${phase}: ${duration((to - from) / 1000)}` });
    bar.style.left = `${(100 * (from - begin)) / span}%`;
    bar.style.width = `max(2px, ${(100 * (to - from)) / span}%)`;
    return bar;
  });
  const words = [...phaseTimes(parts)].filter(([phase]) => phase !== "waiting").map(([phase, ms]) => h("li", {}, h("i", { class: `swatch ${phase}` }), `${phase} ${duration(ms / 1000)}`));
  return h("div", { class: "lane" },
    h("div", { class: "lane-name" }, h("strong", {}, name), ` ${duration(whole)}`, worker && h("span", { class: "quiet" }, ` on ${worker}`)),
    h("div", { class: "track", "aria-hidden": "true" }, bars),
    words.length > 0 && h("ul", { class: "keys" }, words));
}
