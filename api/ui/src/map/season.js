// The area of each class on each date of a series, as lines over the dates.
import uPlot from "uplot";
import { h } from "../dom.js";
import { number } from "../words.js";

/** Return the chart of a series of dates; null for another result. */
export function season({ series, dates }) {
  if (!series || dates.length < 2) return null;
  const known = dates.every(({ classes }) => classes.every(({ area_m2 }) => area_m2 !== null));
  const [unit, of] = known ? ["km²", ({ area_m2 }) => area_m2 / 1e6] : ["pixels", ({ pixels }) => pixels];
  const timed = series.order === "time";
  const at = dates.map(({ date, time }) => (timed ? Date.parse(time.split("/")[0]) / 1000 : date));
  const shown = dates[0].classes.map((one, index) => ({ ...one, values: dates.map(({ classes }) => of(classes[index])) })).filter(({ values }) => values.some((value) => value > 0));
  const title = `Area of each class by date, in ${unit}`;
  const element = h("figure", { class: "chart", role: "img", "aria-label": `${title}; series.csv has the figures` }, h("figcaption", {}, title));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const written = (value) => (timed ? new Date(value * 1000).toISOString().slice(0, 10) : number(value));
  new ResizeObserver((_, observer) => {
    if (!element.clientWidth) return;
    observer.disconnect();
    new uPlot({
      width: Math.floor(element.clientWidth), height: 200, legend: { live: false }, cursor: { show: false },
      tzDate: (value) => uPlot.tzDate(new Date(value * 1000), "UTC"), scales: { x: { time: timed }, y: { range: (_, low, high) => [0, high * 1.1 || 1] } },
      axes: [{ ...axis, size: 24, space: 90, values: (_, values) => values.map(written) }, { ...axis, size: 76 }],
      series: [{}, ...shown.map(({ name, colour: stroke }) => ({ label: name, stroke, width: 2, points: { show: true, size: 6, fill: stroke } }))],
    }, [at, ...shown.map(({ values }) => values)], element);
  }).observe(element);
  return element;
}
