// Live workers: devices, models, running jobs.
import { get, sleep } from "../api.js";
import { fill, h, section, table } from "../dom.js";
import { badge } from "../jobs/parts.js";
import { may } from "../session.js";
import { ago } from "../words.js";

export async function workers(signal) {
  const body = h("div");
  const read = async () => {
    const found = (await get("/v1/workers", { signal })).workers;
    fill(body, found.length ? table("Workers", ["Worker", "State", "Device", "Running", "Queues", "Models", "Started"], found.map((worker) => [
      h("span", {}, worker.host, worker.pid !== null && ` pid ${worker.pid}`, h("br"), h("span", { class: "quiet id" }, worker.id), may("admin") && [h("br"), h("a", { href: `#/worker/${encodeURIComponent(worker.id)}` }, "Log")]), badge(worker.state), worker.device, `${worker.running} of ${worker.slots}`, worker.queues.join(", "),
      h("ul", { class: "plain-list" }, worker.models.map((model) => h("li", {}, model.name, h("span", { class: "quiet" }, model.loaded ? " loaded" : model.ready ? " ready" : " not ready")))), ago(worker.started_at),
    ])) : h("p", { class: "quiet" }, "No worker is live: jobs wait until one starts. ", h("code", {}, "penstock up"), " and ", h("code", {}, "penstock worker"), " start workers."));
  };
  await read();
  (async () => {
    while (!signal.aborted) {
      await sleep(5000, signal);
      if (!signal.aborted) await read().catch(() => {});
    }
  })();
  return section("Workers", body);
}
