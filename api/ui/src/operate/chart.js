// A small chart of the last minutes, as far as this tab has seen them.
import uPlot from "uplot";
import { h } from "../dom.js";

const MOST = 200;
// Seconds that a chart spans at least: the first point alone has no width.
const LEAST_S = 30;
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** Return a chart of series `[{label, hue}]`; `add(at, values)` appends a point. */
export function chart(title, series) {
  const element = h("figure", { class: "chart" }, h("figcaption", {}, title));
  const points = [[], ...series.map(() => [])];
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 42 };
  let plot = null;
  return {
    element,
    add(at, values) {
      points[0].push(at);
      values.forEach((value, index) => points[index + 1].push(value));
      if (points[0].length > MOST) points.forEach((each) => each.shift());
      plot ??= new uPlot({
        width: 280, height: 130, legend: { show: series.length > 1, live: false }, cursor: { show: false },
        scales: { x: { range: () => [points[0][0], Math.max(points[0].at(-1), points[0][0] + LEAST_S)] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
        axes: [{ ...axis, size: 24, space: 70, values: (_, times) => times.map((at) => CLOCK.format(at * 1000)) }, axis],
        series: [{}, ...series.map(({ label, hue }) => ({ label, stroke: colour(hue), width: 2, points: { show: points[0].length < 3 } }))],
      }, points, element);
      plot.setData(points);
      const width = Math.floor(element.clientWidth);
      if (width > 100 && width !== plot.width) plot.setSize({ width, height: 130 });
    },
  };
}
