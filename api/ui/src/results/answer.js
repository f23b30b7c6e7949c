// The answer of a job: its JSON in the forms that the views of its model name. The same as `penstock.views` in Python.
import { get } from "../api.js";
import { h, swatch, table } from "../dom.js";
import { number, precise } from "../words.js";

/** Items of a part, and parts, that are shown. The rest is in the JSON. */
const ITEMS = 100;
const PARTS = 20;

/** Return the views of a model; none where no worker serves it any more. */
export async function viewsOf(model, signal) {
  try {
    return (await get(`/v1/models/${encodeURIComponent(model)}`, { signal })).views ?? [];
  } catch (error) {
    if (signal.aborted) throw error;
    return [];
  }
}

/** Return the parts of the JSON that the views name: their form, their heading and their items; what an earlier part has is not shown again. */
export function partsOf(views, data) {
  const parts = views.flatMap(({ form, at, each }) => found(data, at.split("/").slice(1), each, "")
    .map(({ heading, items }) => ({ heading, items: form === "rows" ? asRows(items) : items }))
    .filter(({ items }) => Array.isArray(items) && items.length)
    .map((part) => ({ form, ...part })));
  const same = (one, other) => one.form === other.form && JSON.stringify(one.items) === JSON.stringify(other.items);
  return parts.filter((part, index) => part.heading || !parts.slice(0, index).some((earlier) => same(earlier, part)));
}

/** Return true where the views name only empty lists: a network that found no object, say. */
export function foundNothing(views, data) {
  const lists = views.flatMap(({ at, each }) => found(data, at.split("/").slice(1), each, "")).map(({ items }) => items).filter(Array.isArray);
  return lists.length > 0 && lists.every((each) => !each.length);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const members = (value) => Object.entries(value).filter(([, each]) => each !== null).map(([name, each]) => ({ name, value: each }));

/** Return an object as rows of its members, and one value as a row. */
function asRows(items) {
  if (isObject(items)) return members(items);
  return ["string", "number", "boolean"].includes(typeof items) ? [items] : items;
}

function found(value, [step, ...steps], each, heading) {
  if (step === undefined) return [{ heading, items: value }];
  if (value === null || typeof value !== "object") return [];
  if (step !== "*") return step in value ? found(value[step], steps, each, heading) : [];
  const items = Array.isArray(value) ? value.map((item, index) => [value.length > 1 ? String(index + 1) : "", item]) : Object.entries(value);
  return items.flatMap(([name, item]) => found(item, steps, each, name ? `${each} ${name}`.trim() : ""));
}

/** Return the elements of parts: bars of labels, tables of rows and boxes, the length and beginning of vectors. */
export function answer(parts) {
  return parts.slice(0, PARTS).map(({ form, heading, items }) => h("div", { class: "part" },
    heading && h("h3", {}, heading),
    (fits(form, items) ? FORMS[form] : rows)(items.slice(0, ITEMS), heading || "Answer"),
    items.length > ITEMS && h("p", { class: "quiet" }, `The first ${ITEMS} of ${number(items.length)}; the others are in the JSON.`)));
}

/** Return true for a known form whose items have what it promises; others are shown as rows. */
function fits(form, items) {
  if (form === "labels") return items.every((item) => typeof item?.label === "string" && typeof item.score === "number");
  if (form === "vectors") return items.every(Array.isArray);
  return form in FORMS;
}

const FORMS = {
  labels: (items) => h("ol", { class: "labels" }, items.map(({ label, score }) =>
    h("li", {}, h("span", {}, String(label)), score >= 0 && score <= 1 ? h("meter", { min: "0", max: "1", value: score, "aria-hidden": "true" }) : h("span"), h("span", { class: "score" }, precise(score))))),
  vectors: (items) => h("ul", {}, items.map((each) =>
    h("li", {}, `${number(each.length)} numbers: `, h("code", {}, `${each.slice(0, 6).map(precise).join(", ")}${each.length > 6 ? ", …" : ""}`)))),
  passages: () => null, // the recording plays them
  boxes: rows,
  rows,
};

function rows(items, caption) {
  const plain = items.map((item, index) => (item !== null && typeof item === "object" && !Array.isArray(item) ? item : { "": index, value: item }));
  const heads = [...new Set(plain.flatMap(Object.keys))];
  return table(caption, heads, plain.map((item) => heads.map((name) => cell(name, item[name]))));
}

function cell(name, value) {
  if (value === null || value === undefined) return "";
  if (name === "colour") return h("span", {}, swatch(value), value);
  if (name === "box") return Object.values(value).map((side) => (typeof side === "number" ? Math.round(side) : JSON.stringify(side))).join(", ");
  if (typeof value === "number") return precise(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
