// The first rows of a table in CSV.
import { csvParseRows } from "d3-dsv";
import { h, table } from "../dom.js";

const ROWS = 100;
const BYTES = 200_000;

export async function view(job, files, signal) {
  const file = files.find((each) => each.kind === "artifact" && /\.csv$/i.test(each.name));
  const response = await fetch(file.url, { headers: { Range: `bytes=0-${BYTES - 1}` }, signal });
  if (!response.ok) throw new Error(`The table cannot be read: the store answered ${response.status}.`);
  const [heads, ...rows] = csvParseRows(await response.text());
  const shown = rows.slice(0, ROWS);
  return h("div", { class: "bounded" }, table(file.name, heads ?? [], shown),
    rows.length > ROWS && h("p", { class: "quiet" }, `The first ${ROWS} rows. Download the artifact for all of them.`));
}
