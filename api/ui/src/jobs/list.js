// The list of jobs: pages of 50, newest first. Whenever jobs change, the shown page is read again.
import { get, stream } from "../api.js";
import { fill, h } from "../dom.js";
import { may } from "../session.js";
import { ago, time } from "../words.js";
import { filters, jobQuery } from "./filters.js";
import { badge, jobPath, labels, progress, shortId } from "./parts.js";

const PAGE = 50;
const TICK_MS = 5000;

export async function show(main, { rest: [id], query, signal }) {
  if (id) return location.replace(jobPath(id));
  const { models } = await get("/v1/models", { signal });
  const rows = new Map();
  const body = h("tbody");
  const words = h("p", { class: "quiet", role: "status" });
  const newer = h("button", { type: "button", onclick: () => turn(-1) }, "Newer");
  const older = h("button", { type: "button", onclick: () => turn(1) }, "Older");
  let cursors = [null];
  let next = null;

  fill(main,
    h("div", { class: "head" }, h("h1", {}, "Jobs"),
      may("submit") && h("a", { class: "button main", href: "#/submit" }, "Submit a job")),
    filters(query, models.map((model) => model.name), (chosen) => { location.hash = `#/jobs${chosen.size ? `?${chosen}` : ""}`; }),
    h("div", { class: "scroll card flush", role: "region", "aria-label": "Jobs", tabindex: "0" },
      h("table", { class: "jobs" },
        h("caption", { class: "unseen" }, "Jobs, newest first"),
        h("thead", {}, h("tr", {}, ["Job", "Status", "Model", "Progress", "Attempt", "Created", "Metadata"].map((name) => h("th", { scope: "col" }, name)))),
        body)),
    h("div", { class: "pages" }, newer, words, older));

  async function read() {
    const page = await get("/v1/jobs", { query: { ...jobQuery(query), limit: PAGE, cursor: cursors.at(-1) }, signal });
    next = page.next_cursor;
    draw(page.jobs);
    newer.disabled = cursors.length === 1;
    older.disabled = next === null;
    fill(words, page.jobs.length ? `Page ${cursors.length}` : cursors.length > 1 || next ? "No such jobs on this page" : query.size ? "No job fits the filters." : ["There are no jobs yet. ", may("submit") && h("a", { href: "#/submit" }, "Submit the first one.")]);
  }

  function draw(jobs) {
    const shown = jobs.map((job) => row(rows, job));
    const ids = new Set(jobs.map((job) => job.id));
    for (const id of rows.keys()) if (!ids.has(id)) rows.delete(id);
    // Rows stay where they are, so that the keyboard's focus does.
    shown.forEach((element, index) => { if (body.children[index] !== element) body.insertBefore(element, body.children[index] ?? null); });
    while (body.children.length > shown.length) body.lastChild.remove();
  }

  async function turn(step) {
    cursors = step > 0 ? [...cursors, next] : cursors.slice(0, -1);
    await read();
  }

  await read();
  follow(read, signal);
  const ticking = setInterval(() => { for (const one of body.querySelectorAll("time")) fill(one, ago(one.dateTime)); }, TICK_MS);
  signal.addEventListener("abort", () => clearInterval(ticking));
}

async function follow(read, signal) {
  for await (const event of stream("/v1/events", signal)) {
    if (event.type === "jobs.changed" && document.visibilityState === "visible") await read().catch(() => {});
  }
}

/** Return the row of a job; one that is unchanged is not drawn again. */
function row(rows, job) {
  const text = JSON.stringify(job);
  const known = rows.get(job.id);
  if (known?.text === text) return known.element;
  const element = known?.element ?? h("tr", {}, h("th", { scope: "row" }, h("a", { href: jobPath(job.id), title: job.id }, shortId(job.id))), Array.from({ length: 6 }, () => h("td")));
  const [, status, model, bar, attempt, created, metadata] = element.children;
  fill(status, badge(job.status));
  fill(model, job.model);
  fill(bar, progress(job));
  fill(attempt, job.attempt ? `${job.attempt} of ${job.max_attempts}` : "");
  fill(created, h("time", { datetime: job.created_at, title: time(job.created_at) }, ago(job.created_at)));
  fill(metadata, labels(job.metadata));
  rows.set(job.id, { text, element });
  return element;
}
