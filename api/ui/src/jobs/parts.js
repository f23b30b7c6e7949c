// Small parts that show a job: its state, its progress.
import { h } from "../dom.js";
import { duration, FINAL, left, number } from "../words.js";

export function badge(status) {
  return h("span", { class: `badge ${status}` }, status);
}

/** Return the state of a model: one with a note waits for a server, or for another try to load it. */
export function readiness({ problem, note, ready }) {
  return badge(problem ? "problem" : ready ? "ready" : note ? "waiting" : "warming up");
}

/** Return a progress bar with its words. Waiting jobs have words alone. */
export function progress(job) {
  if (FINAL.has(job.status)) return h("span", { class: "quiet" }, done(job));
  if (job.status !== "running" && job.status !== "canceling") return h("span", { class: "quiet" }, waiting(job));
  const { done: at, total, unit } = job.progress;
  const share = total ? Math.min(1, at / total) : null;
  const words = [job.phase, total ? `${number(at)} of ${number(total)} ${unit}` : null, left(job)].filter(Boolean);
  return h("div", { class: "progress" },
    h("progress", { value: share ?? undefined, max: "1", "aria-label": `Progress of job ${job.id}` }),
    h("span", { class: "quiet" }, words.join(", ")));
}

function done(job) {
  const seconds = (new Date(job.completed_at) - new Date(job.created_at)) / 1000;
  const code = job.error?.code;
  return code ? `${code} after ${duration(seconds)}` : `took ${duration(seconds)}`;
}

function waiting(job) {
  if (job.model_problem) return job.model_problem;
  const place = job.queue_position === null ? null : `place ${number(job.queue_position)}`;
  return [place, left(job)].filter(Boolean).join(", ");
}

/** Return metadata as small labels. */
export function labels(metadata) {
  return Object.entries(metadata).map(([name, value]) => h("span", { class: "label" }, `${name}=${value}`));
}

export const jobPath = (id) => `#/job/${id}`;
export const shortId = (id) => id.slice(-12);
