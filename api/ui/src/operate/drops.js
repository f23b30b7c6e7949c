// Drop rules: where each one looks, what it takes and ignores, and which objects failed for what reason.
import { get } from "../api.js";
import { h, section, table } from "../dom.js";

export async function drops(signal) {
  const { rules } = await get("/v1/drops", { signal });
  if (!rules.length) return section("Drop rules", h("p", { class: "quiet" }, "There are none: add ", h("code", {}, "[[drops]]"), " to penstock.toml."));
  return section("Drop rules", table("Drop rules", ["Rule", "Where", "Model", "Takes", "Objects", "Waiting", "Failed", "Problem"], rules.map(row)), rules.map(objects));
}

function row({ name, bucket, prefix, model, problem, last_pass: last }) {
  const takes = last?.takes.map((end) => end || "all files").join(" ") ?? "";
  return [name, h("span", { class: "url" }, `${bucket.replace(/\/$/, "")}/${prefix}`), model, takes, last?.found ?? "", last?.waiting ?? "", last?.failed ?? "", problem && h("span", { class: "problem" }, problem)];
}

/** Return the files that a rule ignores, and the objects that failed. */
function objects({ name, last_pass: last }) {
  const failures = Object.entries(last?.failures ?? {});
  return [
    last?.ignored > 0 && h("p", {}, `${name} ignores ${last.ignored === 1 ? "1 file" : `${last.ignored} files`} without one of its suffixes (${last.takes.join(" ")}): ${last.ignored_files.join(", ")}${last.ignored > last.ignored_files.length ? ", ..." : ""}`),
    failures.length > 0 && [h("h3", {}, `Failed objects of ${name}`), table(`Failed objects of ${name}`, ["Object", "Reason"], failures), h("p", { class: "quiet" }, "After a correction, ", h("code", {}, `penstock drops retry ${name}`), " runs them again.")],
  ];
}
