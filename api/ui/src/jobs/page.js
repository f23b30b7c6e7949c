// The page of one job. Its events arrive as a stream; whatever they change is read again and drawn again.
import { get, stream } from "../api.js";
import { facts, fill, h, section } from "../dom.js";
import { result } from "../results/result.js";
import { ago, FINAL, left, number, time } from "../words.js";
import { actions } from "./actions.js";
import { deliveries } from "./deliveries.js";
import { errorBox } from "./error.js";
import { eventLog } from "./events.js";
import { files } from "./files.js";
import { lines } from "./lines.js";
import { badge, jobPath, labels, progress } from "./parts.js";
import { timeline } from "./timeline.js";

export async function show(main, { rest: [id], signal }) {
  const read = () => get(`/v1/jobs/${encodeURIComponent(id)}`, { signal });
  let job;
  try {
    job = await read();
  } catch (error) {
    if (![404, 410, 422].includes(error.status)) throw error;
    fill(main, missing(id, error));
    return;
  }
  const head = h("div", { class: "stack close" });
  const bars = h("div");
  const log = eventLog();
  const shown = result(signal);
  const more = h("div", { class: "stack" });
  fill(main, head, shown.element, section("Timeline", bars), more,
    section("Input", h("pre", { class: "json", tabindex: "0" }, JSON.stringify(job.input, null, 2))), log.element);

  async function draw() {
    redraw(head, header(job, refresh));
    fill(bars, timeline(job));
    shown.update(job);
  }
  async function refresh() {
    job = await read();
    await draw();
    if (FINAL.has(job.status)) await ended();
  }
  async function ended() {
    fill(more, await parts(job, signal));
  }

  await draw();
  fill(more, await parts(job, signal));
  follow(job, { signal, log, shown, refresh });
}

/** Return why there is no job to show: one is unknown, or was deleted at the end of its retention. */
function missing(id = "", { status, message }) {
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Jobs")),
    h("h1", {}, status === 410 ? "The job is no longer kept" : "No such job"),
    h("p", { class: "problem", role: "alert" }, status === 410 ? message : ["This tenant has no job ", h("code", {}, id), "."]),
    status !== 410 && h("p", { class: "quiet" }, "Check the address: the job's id may be mistyped. A deleted job, and a job of another tenant, are not shown."),
  ];
}

async function follow(job, { signal, log, shown, refresh }) {
  let due = null;
  for await (const event of stream(`/v1/jobs/${job.id}/events`, signal, { ends: ({ type }) => FINAL.has(type.replace("job.", "")) })) {
    if (event.type === "snapshot") continue;
    log.add(event);
    shown.event(event);
    due ??= setTimeout(() => { due = null; if (!signal.aborted) refresh().catch(() => {}); }, 300);
  }
}

/** Replace the children of an element; the focus stays on the control of the same name. */
function redraw(element, children) {
  const focus = element.contains(document.activeElement) ? document.activeElement.textContent : null;
  fill(element, children);
  if (focus !== null) [...element.querySelectorAll("a, button")].find((each) => each.textContent === focus)?.focus();
}

/** Return why a job waits, and for what. */
function held({ model_problem: problem, queue }) {
  return [
    h("p", { class: "problem" }, `The job waits: ${problem}`),
    h("p", { class: "quiet" }, h("strong", {}, "What to do: "), "Wait, or ask the operator: the job starts when a worker of the queue ", h("code", {}, queue), " can run its model. The view Operate shows workers and models."),
  ];
}

function header(job, changed) {
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Jobs")),
    h("div", { class: "head" },
      h("div", {}, h("h1", {}, job.model, " ", badge(job.status)), h("p", { class: "quiet id" }, job.id)),
      h("div", { class: "buttons" }, actions(job, changed))),
    !FINAL.has(job.status) && h("div", { class: "card" }, job.model_problem ? held(job) : progress(job)),
    job.error && errorBox(job.error, FINAL.has(job.status) ? "Error" : "Error of the latest attempt"),
    facts([
      ["Created", h("time", { datetime: job.created_at, title: time(job.created_at) }, `${time(job.created_at)} (${ago(job.created_at)})`)],
      ["Attempt", job.attempt ? `${job.attempt} of ${job.max_attempts}` : ""],
      ["Queue", job.queue], ["Priority", job.priority], ["Time left", left(job)],
      ["Metadata", Object.keys(job.metadata).length ? labels(job.metadata) : ""],
      ["Retry of", job.retry_of && h("a", { href: jobPath(job.retry_of) }, job.retry_of)],
      ["After", jobs(job.after)], ["Followed by", jobs(job.followers)],
      ["Batch", job.batch_id && `${job.batch_id}, line ${number(job.batch_line)}`],
      ["Kept until", time(job.expires_at)],
    ]),
  ];
}

/** Return links to other jobs, which are spaces apart. */
function jobs(ids) {
  return ids?.length ? h("span", {}, ids.flatMap((id) => [h("a", { href: jobPath(id) }, id), " "])) : "";
}

async function parts(job, signal) {
  return [
    await files(job, signal),
    await lines(job, signal),
    await deliveries(job, signal),
    Object.keys(job.metrics).length > 0 && section("Metrics", h("p", { class: "quiet" }, "Of the latest attempt; times in milliseconds."),
      facts(Object.entries(job.metrics).map(([name, value]) => [name, number(value)]))),
  ];
}
