// Models and their problems.
import { get } from "../api.js";
import { h, section, table } from "../dom.js";
import { readiness } from "../jobs/parts.js";
import { time } from "../words.js";

export async function models(signal) {
  const found = (await get("/v1/models", { signal })).models;
  if (!found.length) return section("Models", h("p", { class: "quiet" }, "No model is known yet. A worker reports its models when it starts."));
  return section("Models", table("Models", ["Model", "State", "Queue", "Processor", "Revision", "Licence"], found.map((model) => [
    h("span", {}, h("a", { href: `#/model/${encodeURIComponent(model.name)}` }, model.name), h("br"), h("span", { class: "quiet" }, model.title)),
    h("span", {}, readiness(model), model.problem && h("span", { class: "problem" }, ` ${model.problem}`), model.note && h("span", { class: "quiet" }, ` ${model.note}`), (model.load_failures ?? []).map(failure)),
    model.queue, model.processor, model.revision, model.licence,
  ])));
}

// A machine on which the model's load ended its process, with the last lines of the load.
const failure = ({ machine, reason, failures, lines, at }) => h("details", {},
  h("summary", {}, `${machine}: its load ${reason}`, failures > 1 && `, ${failures} times in a row`, `, ${time(at)}`),
  h("pre", {}, lines.join("\n")));
