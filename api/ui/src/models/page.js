// The page of a model: what it does, what it takes and gives, and an example to run.
import { call, get } from "../api.js";
import { fill, h, note, prose, section, table } from "../dom.js";
import { jobPath, readiness } from "../jobs/parts.js";
import { may } from "../session.js";
import { commands } from "../submit/commands.js";
import { kindOf, limits, resolve } from "../submit/schema.js";
import { upload } from "../submit/upload.js";
import { about } from "./about.js";
import { example, isMade, made } from "./example.js";

export async function show(main, { rest: [name = ""], signal }) {
  const model = await get(`/v1/models/${encodeURIComponent(name)}`, { signal });
  const beside = commands();
  fill(main,
    h("p", { class: "crumbs" }, h("a", { href: "#/operate" }, "Operate")),
    h("div", { class: "head" },
      h("div", {}, h("h1", {}, model.title || model.name, " ", readiness(model)), h("p", { class: "quiet id" }, model.name)),
      may("submit") && h("a", { class: "button main", href: `#/submit/${encodeURIComponent(model.name)}` }, "Submit a job")),
    h("div", { class: "columns" },
      h("div", { class: "stack" },
        h("div", { class: "card" }, h("p", { class: "about" }, prose(model.description)), about(model)),
        tryIt(model, beside, signal), inputs(model.input_schema), outputs(model)),
      beside.element));
}

/** Return the section of the example; the commands beside it show the same. */
function tryIt(model, beside, signal) {
  const found = example(model.input_schema);
  if (!found) {
    beside.element.hidden = true;
    return null;
  }
  const names = Object.values(found.files).flat();
  const all = { ...found.input, ...found.files };
  beside.update({ model: model.name, input: all }, found.files);
  const wrong = h("p", { class: "problem", role: "alert", hidden: true });
  const run = h("button", { type: "button", class: "main", onclick: () => start(model, found, { run, wrong, signal }) }, "Run the example");
  const missing = names.filter((each) => !isMade(each, found.columns));
  return section("Example",
    h("dl", { class: "facts" }, Object.entries(all).map(([name, value]) => h("div", {}, h("dt", {}, name), [value].flat().map((each) => h("dd", {}, String(each)))))),
    missing.length > 0
      ? h("p", {}, "A file of your own, or a synthetic one: ", missing.map((each) => h("code", {}, `penstock sample ${each}`)), " writes it. Then drop it into the form.")
      : may("submit") && [names.length > 0 && h("p", { class: "quiet" }, "The page brings the file: it is synthetic."), h("div", { class: "buttons" }, run), wrong]);
}

async function start(model, { input, files, columns }, { run, wrong, signal }) {
  run.disabled = true;
  wrong.hidden = true;
  try {
    const given = { ...input };
    for (const [name, value] of Object.entries(files)) {
      const references = await Promise.all([value].flat().map(async (each) => upload(await made(each, columns), () => {}, signal)));
      given[name] = Array.isArray(value) ? references : references[0];
    }
    const job = await call("POST", "/v1/jobs", { body: { model: model.name, input: given }, signal });
    note("The example is submitted.");
    location.hash = jobPath(job.id);
  } catch (error) {
    if (signal.aborted) return;
    run.disabled = false;
    wrong.hidden = false;
    fill(wrong, error.message);
  }
}

function inputs(root) {
  const schema = resolve(root, root);
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([name, part]) => {
    const found = resolve(part, root);
    const inner = found.items ? resolve(found.items, root) : found;
    const kind = WORDS[kindOf(inner)];
    return [h("code", {}, name), required.has(name) ? "yes" : "", found.items ? `${found.one ? "one or a list of" : "list of"} ${kind}` : kind,
      [prose(found.description), h("span", { class: "quiet" }, limits(found) && ` ${limits(found)}`)]];
  });
  return rows.length ? section("Input", table("Input", ["Field", "Required", "Kind", "Description"], rows)) : null;
}

const WORDS = { media: "file", text: "text", number: "number", switch: "yes or no", choice: "choice", choices: "choices", group: "object", list: "list", json: "JSON", const: "constant" };

function outputs(model) {
  return model.outputs.length ? section("Outputs", table("Outputs", ["Output", "Type", "Description"], model.outputs.map((output) =>
    [h("code", {}, output.name), output.media_type, prose(output.description)]))) : null;
}
