// Submit a job: a form from the model's JSON Schema, and the same job as commands beside it.
import { call, get, Problem } from "../api.js";
import { fill, h, note } from "../dom.js";
import { jobPath } from "../jobs/parts.js";
import { about } from "../models/about.js";
import { commands } from "./commands.js";
import { field, members } from "./fields.js";
import { resolve } from "./schema.js";

export async function show(main, { rest: [wanted], query, signal }) {
  const earlier = query.has("from") ? await get(`/v1/jobs/${encodeURIComponent(query.get("from"))}`, { signal }) : null;
  const { models } = await get("/v1/models", { signal });
  if (!models.length) {
    fill(main, h("h1", {}, "Submit a job"), h("p", {}, "No model is known yet. A worker reports its models when it starts."));
    return;
  }
  const named = models.find(({ name, aliases }) => name === wanted || aliases.includes(wanted));
  const chosen = named ?? models.find(({ problem }) => !problem) ?? models[0];
  // A service that has just started still checks its models, and refuses this request with a sentence until it has.
  const model = chosen.input_schema.properties ? chosen : await get(`/v1/models/${encodeURIComponent(chosen.name)}`, { signal });
  const pick = h("select", { id: "model", onchange: () => { location.hash = `#/submit/${pick.value}`; } },
    models.map(({ name, title }) => h("option", { value: name, selected: name === model.name }, title && title !== name ? `${name}: ${title}` : name)));
  const beside = commands();
  fill(main, h("h1", {}, "Submit a job"),
    wanted && !named && h("p", { class: "problem", role: "alert" }, `There is no model ${wanted} now. The form is that of another model.`),
    h("div", { class: "columns" },
      h("div", { class: "stack" }, h("div", { class: "card" }, h("div", { class: "field" }, h("label", { for: "model" }, "Model"), pick), about(model),
        h("p", {}, h("a", { href: `#/model/${encodeURIComponent(model.name)}` }, "About the model, with an example"))), form(model, beside, signal, named && earlier)),
      beside.element));
}

/** Return the form; with an `earlier` job it begins with that job's input, metadata and priority. */
function form(model, beside, left, earlier) {
  const pending = new Set();
  const submit = h("button", { class: "main", type: "submit" }, "Submit");
  const wrong = h("div", { class: "problem", role: "alert", hidden: true });
  const uploads = { begin: (own) => begin(pending, AbortSignal.any([own, left]), () => { submit.disabled = pending.size > 0; }) };
  const root = model.input_schema;
  let ready = false;
  const context = { root, uploads, changed: () => { if (ready) beside.update(request(), fileNames()); } };
  const input = members(resolve(root, root), context, -1);
  const metadata = h("input", { id: "metadata", placeholder: "campaign=spring, field=7", autocomplete: "off", oninput: context.changed });
  const priority = field("priority", { enum: ["low", "normal", "high"], description: "Orders your own waiting jobs." }, false, context);
  const element = h("form", { class: "card", onsubmit: send, novalidate: false },
    input.main, input.others.length > 0 && (input.main.length ? h("details", { class: "more" }, h("summary", {}, "More parameters"), input.others) : input.others),
    h("details", { class: "more" }, h("summary", {}, "Metadata and priority"),
      h("div", { class: "field" }, h("label", { for: "metadata" }, "metadata"), metadata, h("p", { class: "quiet" }, "NAME=VALUE, with commas between them. The list of jobs can be filtered by them.")),
      priority.element),
    wrong, h("div", { class: "buttons" }, submit));

  function request() {
    const pairs = metadata.value.split(",").map((each) => each.trim()).filter((each) => each.includes("=")).map((each) => [each.slice(0, each.indexOf("=")), each.slice(each.indexOf("=") + 1)]);
    const rank = priority.value();
    return { model: model.name, input: input.value() ?? {}, ...(pairs.length ? { metadata: Object.fromEntries(pairs) } : {}), ...(rank ? { priority: rank } : {}) };
  }
  function fileNames() {
    const given = Object.entries(request().input).filter(([, value]) => [value].flat().every((each) => typeof each === "string" && each.startsWith("media://")));
    const named = (value) => value.split("/").at(-1);
    return Object.fromEntries(given.map(([name, value]) => [name, Array.isArray(value) ? value.map(named) : named(value)]));
  }
  async function send(event) {
    event.preventDefault();
    submit.disabled = true;
    wrong.hidden = true;
    for (const each of element.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
    for (const each of element.querySelectorAll(".field > .problem")) each.hidden = true;
    try {
      const job = await call("POST", "/v1/jobs", { body: request(), headers: { "Idempotency-Key": crypto.randomUUID?.() ?? String(Math.random()) } });
      note("The job is submitted.");
      location.hash = jobPath(job.id);
    } catch (error) {
      submit.disabled = false;
      wrong.hidden = false;
      fill(wrong, h("p", {}, error.message), error instanceof Problem && error.errors.length > 0 && h("ul", {}, error.errors.map((issue) => h("li", {}, h("code", {}, issue.pointer), " ", issue.detail))));
      const first = (error.errors ?? []).map((issue) => input.point(issue.pointer.replace(/^\/input/, ""), issue.detail)).find(Boolean);
      first?.focus();
    }
  }
  if (earlier) {
    input.set(earlier.input);
    metadata.value = Object.entries(earlier.metadata).map(([name, value]) => `${name}=${value}`).join(", ");
    priority.set(earlier.priority);
    for (const each of element.querySelectorAll("details.more")) each.open = true;
  }
  ready = true;
  context.changed();
  return element;
}

/** Note an upload among those that are pending: until it is done, a closing tab asks first. Leaving the view stops it. */
function begin(pending, signal, changed) {
  const one = {};
  const keep = (event) => event.preventDefault();
  const done = () => { pending.delete(one); removeEventListener("beforeunload", keep); changed(); };
  pending.add(one);
  addEventListener("beforeunload", keep);
  changed();
  return { signal, done };
}
