// The facts of a model: its licence and its limits.
import { facts, h } from "../dom.js";
import { bytes, duration } from "../words.js";

export function about({ limits, licence, problem, note, revision, links = [] }) {
  return [
    problem && h("p", { class: "problem" }, `The model cannot run now: ${problem}`),
    !problem && note && h("p", { class: "quiet" }, `Jobs of the model wait: ${note}`),
    facts([
      ["Licence", licence], ["Files", limits.max_items && `at most ${limits.max_items}`], ["Size", limits.max_bytes && `at most ${bytes(limits.max_bytes)}`],
      ["Length", limits.max_seconds && `at most ${duration(limits.max_seconds)}`], ["Revision", revision],
      ["Links", links.length ? links.map((each) => h("div", {}, /^https?:/.test(each) ? h("a", { href: each, rel: "noreferrer" }, each) : each)) : ""],
    ]),
  ];
}
