// The controls beside the map: each with its label.
import { h, newId } from "../dom.js";

export function slider(name, value, change) {
  const id = newId("slider");
  const input = h("input", { id, type: "range", min: "0", max: "100", value: String(value), oninput: () => change(Number(input.value)) });
  return h("div", { class: "control" }, h("label", { for: id }, name), input);
}

export function check(name, value, change) {
  const id = newId("check");
  const input = h("input", { id, type: "checkbox", checked: value, onchange: () => change(input.checked) });
  return h("div", { class: "control" }, input, h("label", { for: id }, name));
}

export function pick(name, options, change) {
  const id = newId("pick");
  const select = h("select", { id, onchange: () => change(select.selectedIndex) }, options.map((option) => h("option", {}, option)));
  return h("div", { class: "control" }, h("label", { for: id }, name), select);
}
