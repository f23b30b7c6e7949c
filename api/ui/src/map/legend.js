// The legend: classes with names, areas and shares, each to be hidden; or the ramp of a quantity.
import { h, newId, swatch } from "../dom.js";
import { area, number, precise } from "../words.js";
import { RAMP } from "./layers.js";

/** Return the table of classes; `change` gets the ids of hidden classes. */
export function classLegend(classes, change) {
  const hidden = new Set();
  const rows = classes.map((one) => {
    const box = h("input", { type: "checkbox", id: newId("class"), checked: true, onchange: () => { box.checked ? hidden.delete(one.id) : hidden.add(one.id); change(hidden); } });
    return h("tr", {}, h("td", {}, box), h("th", { scope: "row" }, h("label", { for: box.id }, swatch(one.colour), one.name)), h("td", {}, area(one.area_m2)), h("td", {}, one.percent === null ? "" : `${number(one.percent)} %`));
  });
  return h("table", { class: "legend" },
    h("caption", {}, "Classes"),
    h("thead", {}, h("tr", {}, h("td", {}, h("span", { class: "unseen" }, "Shown")), h("th", { scope: "col" }, "Name"), h("th", { scope: "col" }, "Area"), h("th", { scope: "col" }, "Share"))),
    h("tbody", {}, rows));
}

/** Return the ramp of a quantity. */
export function valueLegend({ name, low, high, scale, unit }) {
  const bar = h("div", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, ${RAMP.join(", ")})`;
  return h("div", { class: "legend" }, h("p", {}, name), bar, h("p", { class: "ends quiet" }, h("span", {}, `${precise(low * scale)} ${unit}`), h("span", {}, `${precise(high * scale)} ${unit}`)));
}
