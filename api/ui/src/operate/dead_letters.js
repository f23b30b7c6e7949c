// Dead letters: jobs whose workers died too often, by queue.
import { call, get } from "../api.js";
import { fill, h, note, section, table } from "../dom.js";
import { button } from "../jobs/actions.js";
import { jobPath, shortId } from "../jobs/parts.js";
import { time } from "../words.js";

export async function deadLetters(signal) {
  const body = h("div", { class: "stack" });
  const read = async () => fill(body, await parts(signal, read));
  await read();
  return section("Dead letters", h("p", { class: "quiet" }, "Jobs of this tenant that lost too many workers. A requeue submits them again."), body);
}

async function parts(signal, changed) {
  const names = await queueNames(signal);
  const found = await Promise.all(names.map(async (name) => [name, (await get(`/v1/queues/${encodeURIComponent(name)}/dead-letters`, { signal })).jobs]));
  const full = found.filter(([, jobs]) => jobs.length);
  if (!full.length) return h("p", {}, "There are none.");
  return full.map(([name, jobs]) => h("div", {},
    h("div", { class: "head" }, h("h3", {}, name), button("Requeue", `Requeue ${jobs.length} dead letters of ${name}?`, "Each becomes a new job.", async () => {
      await call("POST", `/v1/queues/${encodeURIComponent(name)}/dead-letters/requeue`);
      note("The dead letters are submitted again.");
      await changed();
    })),
    table(`Dead letters of ${name}`, ["Job", "Model", "Ended", "Error"], jobs.map((job) => [h("a", { href: jobPath(job.id), title: job.id }, shortId(job.id)), job.model, time(job.completed_at), job.error?.detail ?? ""]))));
}

/** Return the queues' names: of all queues where the key may see them, else those of the models. */
async function queueNames(signal) {
  try {
    return (await get("/v1/queues", { signal })).queues.map(({ name }) => name);
  } catch {
    return [...new Set((await get("/v1/models", { signal })).models.map(({ queue }) => queue))];
  }
}
