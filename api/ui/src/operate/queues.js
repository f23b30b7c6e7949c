// Queues: depth, workers, throughput, and what an operator may do with each.
import { call, get, sleep } from "../api.js";
import { facts, fill, h, note, section } from "../dom.js";
import { button } from "../jobs/actions.js";
import { badge } from "../jobs/parts.js";
import { may } from "../session.js";
import { duration, number, precise } from "../words.js";
import { chart } from "./chart.js";

const EVERY_MS = 3000;

export async function queues(signal) {
  const shown = new Map();
  const list = h("div", { class: "stack" });
  const element = section("Queues", list);
  async function read() {
    const found = await get("/v1/queues", { signal });
    for (const queue of found.queues) {
      if (!shown.has(queue.name)) {
        shown.set(queue.name, panel(queue.name, read));
        list.append(shown.get(queue.name).element);
      }
      shown.get(queue.name).update(queue);
    }
    if (!found.queues.length) fill(list, h("p", { class: "quiet" }, "No queue is known yet. A worker reports its queues when it starts."));
  }
  await read();
  poll(read, signal);
  return element;
}

async function poll(read, signal) {
  while (!signal.aborted) {
    await sleep(EVERY_MS, signal);
    if (!signal.aborted && document.visibilityState === "visible") await read().catch(() => {});
  }
}

function panel(name, changed) {
  const words = h("div");
  const buttons = h("div", { class: "buttons" });
  const title = h("h3", {}, name);
  const depth = chart("Jobs", [{ label: "queued", hue: "--hue-0" }, { label: "running", hue: "--hue-1" }]);
  const staff = chart("Workers", [{ label: "live", hue: "--hue-1" }, { label: "wanted", hue: "--hue-2" }]);
  const pace = chart("Succeeded jobs per minute", [{ label: "throughput", hue: "--hue-1" }]);
  const age = chart("Oldest age in seconds", [{ label: "oldest age", hue: "--hue-0" }]);
  let mode = null;
  return {
    element: h("div", { class: "queue" }, h("div", { class: "head" }, title, buttons), words, h("div", { class: "charts" }, depth.element, staff.element, pace.element, age.element)),
    update(queue) {
      const at = Date.now() / 1000;
      requestAnimationFrame(() => {
        depth.add(at, [queue.queued, queue.running]);
        staff.add(at, [queue.workers, queue.wanted_workers]);
        pace.add(at, [queue.throughput_per_s * 60]);
        age.add(at, [queue.oldest_age_s]);
      });
      fill(words, facts([
        ["Queued", number(queue.queued)], ["Running", number(queue.running)], ["Live workers", number(queue.workers)], ["Wanted workers", number(queue.wanted_workers)],
        ["Slots", number(queue.slots)], ["Throughput", `${precise(queue.throughput_per_s * 60)} per minute`], ["Oldest age", queue.queued ? duration(queue.oldest_age_s) : "none waits"],
        ["Until empty", queue.queued + queue.running === 0 ? "empty now" : queue.eta_s === null ? "no estimate" : duration(queue.eta_s)], ["Dead letters", number(queue.dead_letters)],
      ]));
      if (mode === queue.mode) return;
      mode = queue.mode;
      fill(title, name, " ", badge(mode));
      fill(buttons, may("admin") && controls(queue, changed));
    },
  };
}

function controls({ name, mode }, changed) {
  const act = (verb, words) => async () => { await call("POST", `/v1/queues/${encodeURIComponent(name)}/${verb}`); note(words); await changed(); };
  return [
    mode !== "paused" && button("Pause", `Pause the queue ${name}?`, "Workers get no jobs of any tenant until it is resumed. Running jobs go on.", act("pause", "The queue is paused.")),
    mode !== "draining" && button("Drain", `Drain the queue ${name}?`, "New jobs of all tenants are rejected; waiting ones are still run.", act("drain", "The queue drains.")),
    mode !== "open" && button("Resume", `Resume the queue ${name}?`, "Workers get jobs again, and new jobs are accepted.", act("resume", "The queue is resumed.")),
    button("Purge", `Purge the queue ${name}?`, "All waiting jobs of your tenant are canceled.", act("purge", "Waiting jobs are canceled."), "danger"),
  ];
}
