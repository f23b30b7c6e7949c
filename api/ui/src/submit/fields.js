// The fields of the form: `element`, `value()` (undefined when empty), `set(value)`, and `point(pointer, text)` for errors.
import { fill, h, newId, prose } from "../dom.js";
import { mediaField } from "./media.js";
import { kindOf, leading, limits, options, resolve } from "./schema.js";

/** Return the field of a part of the schema. `name` is its key, `context` has `root`, `changed` and `uploads`. */
export function field(name, schema, required, context, depth = 0) {
  const found = resolve(schema, context.root);
  const whole = found.items ? { ...found, items: resolve(found.items, context.root) } : found;
  return MAKERS[kindOf(whole, depth)](name, whole, required, context, depth);
}

/** Texts that may be longer than this have several lines. */
const LONG_CHARS = 3000;

const MAKERS = { media: mediaField, text, number: numeric, switch: toggle, choice, choices, group, list, json, const: fixed };

/** Return a field around one control, with label, description and room for an error. */
export function labelled(name, schema, required, control, value, set = (given) => { control.value = String(given); }) {
  const id = control.id || newId("field");
  const about = newId("about");
  control.id = id;
  control.setAttribute("aria-describedby", about);
  const wrong = h("p", { class: "problem", hidden: true });
  const words = [schema.description, limits(schema)].filter(Boolean).join(" (") + (schema.description && limits(schema) ? ")" : "");
  const element = h("div", { class: "field" },
    h("label", { for: id }, name, required && h("span", { class: "required" }, " required")),
    control, h("p", { class: "quiet", id: about }, prose(words)), wrong);
  return { element, value, set, point: (pointer, text) => { wrong.hidden = false; fill(wrong, text); control.setAttribute("aria-invalid", "true"); return control; } };
}

function text(name, schema, required, { changed }) {
  const long = (schema.maxLength ?? Infinity) > LONG_CHARS && !schema.pattern && !schema.format;
  const control = h(long ? "textarea" : "input", { oninput: changed, required, spellcheck: long ? "true" : "false", rows: long ? "4" : undefined });
  return labelled(name, schema, required, control, () => control.value === "" ? undefined : control.value);
}

function numeric(name, schema, required, { changed }) {
  const control = h("input", { type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum, max: schema.maximum, required, oninput: changed });
  return labelled(name, schema, required, control, () => control.value === "" ? undefined : Number(control.value));
}

function toggle(name, schema, required, { changed }) {
  const control = h("select", { onchange: changed }, ["", "true", "false"].map((each) => h("option", { value: each }, { "": "default", true: "yes", false: "no" }[each])));
  return labelled(name, schema, required, control, () => control.value === "" ? undefined : control.value === "true");
}

function choice(name, schema, required, { changed }) {
  const values = schema.enum.filter((each) => each !== null);
  const control = h("select", { onchange: changed, required }, h("option", { value: "" }, required ? "choose" : "default"), values.map((each, index) => h("option", { value: String(index) }, String(each))));
  return labelled(name, schema, required, control, () => control.value === "" ? undefined : values[Number(control.value)], (given) => { control.value = String(values.indexOf(given)); });
}

function choices(name, schema, required, { changed }) {
  const values = options(schema.items);
  const chosen = new Set(schema.default ?? []);
  const boxes = values.map((each) => h("input", { type: "checkbox", id: newId("choice"), checked: chosen.has(each), onchange: changed }));
  const wrong = h("p", { class: "problem", hidden: true });
  const element = h("fieldset", { class: "field" }, h("legend", {}, name), schema.description && h("p", { class: "quiet" }, prose(schema.description)),
    h("div", { class: "choices" }, boxes.map((box, index) => h("span", {}, box, h("label", { for: box.id }, String(values[index]))))), wrong);
  const value = () => {
    const found = values.filter((_, index) => boxes[index].checked);
    const same = found.length === chosen.size && found.every((each) => chosen.has(each));
    return same && !required ? undefined : found;
  };
  const set = (given) => boxes.forEach((box, index) => { box.checked = given.includes(values[index]); });
  return { element, value, set, point: (_, text) => { wrong.hidden = false; fill(wrong, text); return boxes[0]; } };
}

function json(name, schema, required, { changed }) {
  const control = h("textarea", { rows: "4", class: "code", spellcheck: "false", required, oninput: () => { control.setCustomValidity(""); try { if (control.value) JSON.parse(control.value); } catch { control.setCustomValidity("This is not JSON."); } changed(); } });
  const about = { ...schema, description: [schema.description, "As JSON."].filter(Boolean).join(" ") };
  return labelled(name, about, required, control, () => { try { return control.value === "" ? undefined : JSON.parse(control.value); } catch { return undefined; } },
    (given) => { control.value = JSON.stringify(given, null, 2); });
}

function fixed(name, schema, required) {
  return { element: h("div", { hidden: true }), value: () => required ? schema.const : undefined, set: () => {}, point: () => null };
}

/**
 * Return the fields of an object, leading ones first. `value()` is undefined when all are empty. An object that may be
 * left out requires no field in the browser: the service checks what was given.
 */
export function members(schema, context, depth, binding = true) {
  const needed = leading(schema, context.root);
  const must = new Set(schema.required ?? []);
  const names = Object.keys(schema.properties ?? {});
  const made = new Map(names.map((name) => [name, field(name, schema.properties[name], binding && must.has(name), context, depth + 1)]));
  const value = () => {
    const pairs = [...made].map(([name, each]) => [name, each.value()]).filter(([, each]) => each !== undefined);
    return pairs.length ? Object.fromEntries(pairs) : undefined;
  };
  const set = (given) => Object.entries(given ?? {}).forEach(([name, each]) => { if (each !== null) made.get(name)?.set(each); });
  const point = (pointer, text) => {
    const [, first, ...rest] = pointer.split("/");
    return made.get(first)?.point(`/${rest.join("/")}`, text) ?? null;
  };
  const main = names.filter((name) => needed.has(name)).map((name) => made.get(name).element);
  const others = names.filter((name) => !needed.has(name)).map((name) => made.get(name).element);
  return { main, others, value, set, point };
}

function group(name, schema, required, context, depth) {
  const inner = members(schema, context, depth, required);
  const body = [schema.description && h("p", { class: "quiet" }, prose(schema.description)), inner.main, inner.others];
  const element = required ? h("fieldset", { class: "field" }, h("legend", {}, name), body) : h("details", { class: "field" }, h("summary", {}, name), body);
  return { element, value: () => inner.value() ?? (required ? {} : undefined), set: (given) => { element.open = true; inner.set(given); }, point: (pointer, text) => { element.open = true; return inner.point(pointer, text); } };
}

function list(name, schema, required, context, depth) {
  const items = [];
  const rows = h("ol", { class: "items" });
  const wrong = h("p", { class: "problem", hidden: true });
  const add = () => {
    const item = field(`${name} ${items.length + 1}`, schema.items, false, context, depth + 1);
    const row = h("li", {}, item.element, h("button", { type: "button", onclick: () => { items.splice(items.indexOf(item), 1); row.remove(); context.changed(); } }, "Remove"));
    if (item.element.localName === "details") item.element.open = true;
    items.push(item);
    rows.append(row);
    context.changed();
  };
  const element = h("fieldset", { class: "field" }, h("legend", {}, name, required && h("span", { class: "required" }, " required")), schema.description && h("p", { class: "quiet" }, prose(schema.description)), rows,
    h("button", { type: "button", onclick: add }, `Add to ${name}`), wrong);
  if (required || schema.one) add();
  const value = () => {
    const found = items.map((item) => item.value()).filter((each) => each !== undefined);
    return schema.one && found.length === 1 ? found[0] : found.length ? found : undefined;
  };
  const set = (given) => [given].flat().forEach((each, index) => { if (index >= items.length) add(); items[index].set(each); });
  const point = (pointer, text) => {
    const [, index, ...rest] = pointer.split("/");
    if (index !== "" && items[Number(index)]) return items[Number(index)].point(`/${rest.join("/")}`, text);
    wrong.hidden = false;
    fill(wrong, text);
    return null;
  };
  return { element, value, set, point };
}
