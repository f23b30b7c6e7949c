// Usage: the sums of ended jobs by day and model, as a chart and a table.
import uPlot from "uplot";
import { get } from "../api.js";
import { facts, fill, h, newId, section, table } from "../dom.js";
import { may } from "../session.js";
import { bytes, duration, number } from "../words.js";

/** What the chart may show: its words, the value of a row, and how a value is written. */
const MEASURES = {
  jobs: { title: "Jobs", of: (row) => Object.values(row.jobs).reduce((sum, count) => sum + count, 0), say: number },
  device: { title: "Device time", of: (row) => row.device_seconds, say: (value) => seconds(value) },
  bytes_in: { title: "Bytes in", of: (row) => row.bytes_in, say: bytes },
  bytes_out: { title: "Bytes out", of: (row) => row.bytes_out, say: bytes },
  tokens: { title: "Tokens", of: (row) => row.tokens_in + row.tokens_out, say: number },
  pixels: { title: "Pixels", of: (row) => row.pixels, say: number },
};
const seconds = (value) => (value ? duration(value) : "0 s");
const SPANS = { 7: "7 days", 31: "31 days", 90: "90 days" };
const DAY_S = 86400;

export async function usage(signal) {
  const chosen = { days: 31, measure: "device", whose: "" };
  const body = h("div", { class: "stack" });
  let report = null;
  const draw = () => fill(body, report.rows.length
    ? [summary(report.total), bars(report, MEASURES[chosen.measure]), rows(report, chosen.whose === "*")]
    : h("p", { class: "quiet" }, "No job ended in these days."));
  const read = async () => {
    const last = new Date().toISOString().slice(0, 10);
    const first = new Date(Date.now() - (chosen.days - 1) * DAY_S * 1000).toISOString().slice(0, 10);
    report = await get("/v1/usage", { query: { from: first, to: last, tenant: chosen.whose }, signal });
    draw();
  };
  const retry = () => read().catch((error) => { if (!signal.aborted) fill(body, h("p", { class: "problem", role: "alert" }, error.message)); });
  const controls = h("div", { class: "filters" },
    choice("Show", titles(MEASURES), chosen.measure, (value) => { chosen.measure = value; draw(); }),
    choice("Days", SPANS, chosen.days, (value) => { chosen.days = Number(value); retry(); }),
    may("admin") && choice("Tenants", { "": "own", "*": "all" }, chosen.whose, (value) => { chosen.whose = value; retry(); }));
  await read();
  return section("Usage", h("div", { class: "stack" }, controls, body));
}

function titles(measures) {
  return Object.fromEntries(Object.entries(measures).map(([name, { title }]) => [name, title]));
}

function choice(label, options, value, changed) {
  const id = newId("usage");
  const given = Object.entries(options).map(([name, words]) => h("option", { value: name, selected: name === String(value) }, words));
  return h("div", {}, h("label", { for: id }, label), h("select", { id, onchange: (event) => changed(event.target.value) }, given));
}

function summary(total) {
  const { jobs } = total;
  return facts([
    ["Succeeded", number(jobs.succeeded)], ["Failed", number(jobs.failed)], ["Canceled", number(jobs.canceled)], ["Expired", number(jobs.expired)],
    ["Device time", seconds(total.device_seconds)], ["In", bytes(total.bytes_in)], ["Out", bytes(total.bytes_out)],
    ["Tokens", number(total.tokens_in + total.tokens_out)], ["Pixels", number(total.pixels)],
  ]);
}

/** Return a chart with a bar for each day of the report. */
function bars(report, { title, of, say }) {
  const sums = new Map();
  for (let at = Date.parse(report.from); at <= Date.parse(report.to); at += DAY_S * 1000) sums.set(new Date(at).toISOString().slice(0, 10), 0);
  for (const row of report.rows) sums.set(row.day, (sums.get(row.day) ?? 0) + of(row));
  const highest = Math.max(...sums.values());
  const element = h("figure", { class: "chart", role: "img", "aria-label": `${title} of each day, at most ${say(highest)}; the table below has the figures` }, h("figcaption", {}, `${title} of each day (UTC)`));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const days = [...sums.keys()].map((day) => Date.parse(day) / 1000);
  requestAnimationFrame(() => {
    const width = Math.max(120, Math.floor(element.clientWidth));
    new uPlot({
      width, height: 160, legend: { show: false }, cursor: { show: false }, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
      scales: { x: { range: [days[0] - DAY_S / 2, days.at(-1) + DAY_S / 2] }, y: { range: [0, highest > 0 ? highest * 1.1 : 1] } },
      axes: [{ ...axis, size: 24, space: 60, values: (_, times) => times.map((at) => new Date(at * 1000).toISOString().slice(5, 10)), incrs: [1, 2, 7, 14, 30].map((n) => n * DAY_S) },
        { ...axis, size: 76, values: (_, values) => values.map((value) => say(value)) }],
      series: [{}, { label: title, fill: colour("--hue-1"), stroke: colour("--hue-1"), paths: uPlot.paths.bars({ size: [0.7, 40] }), points: { show: false } }],
    }, [days, [...sums.values()].map((value) => value || null)], element);
  });
  return element;
}

function rows(report, withTenant) {
  const heads = ["Day", ...(withTenant ? ["Tenant"] : []), "Model", "Jobs", "Failed", "Device time", "In", "Out", "Tokens", "Pixels"];
  return table("Usage", heads, [...report.rows].reverse().map((row) => [
    h("span", { class: "one-line" }, row.day), ...(withTenant ? [row.tenant] : []), row.model, number(MEASURES.jobs.of(row)), row.jobs.failed ? number(row.jobs.failed) : "", seconds(row.device_seconds),
    bytes(row.bytes_in), bytes(row.bytes_out), number(MEASURES.tokens.of(row)), number(row.pixels),
  ]));
}
