// An example of a model's input: its texts, and the files that the page can make itself.
import { kindOf, leading, resolve } from "../submit/schema.js";

/** Texts of an example where the schema has none. */
const TEXTS = ["A lagoon lies between the river and the sea.", "The train to the coast leaves at noon."];
/** Keys of a media field's schema: the endings of the names of its files, and the columns of its tables. */
const SUFFIXES = "x-suffixes";
const COLUMNS = "x-columns";
/** Rows of a table. */
const ROWS = 8;

/** The files that the page makes or has, by the ending of their names, in order. */
const MAKERS = {
  ".png": picture, ".wav": recording, ".csv": sheet, ".mp4": () => shipped("video.mp4"), ".tif": () => shipped("scene.tif"),
  ".txt": () => new Blob([TEXTS.join("\n")], { type: "text/plain" }),
};

/**
 * Return the smallest useful input by a schema: `input` has the values, `files` the names of files that are made or
 * chosen, by field, `columns` those of a table. Null where a field needs more than texts and files. Pure.
 */
export function example(root) {
  const schema = resolve(root, root);
  const found = { input: {}, files: {}, columns: [] };
  for (const name of wanted(schema, root)) {
    const part = resolve(schema.properties[name], root);
    const inner = part.items ? resolve(part.items, root) : part;
    const kind = kindOf(inner);
    if (kind === "media") {
      found.columns = part[COLUMNS] ?? [];
      found.files[name] = listed(part, [fileName(part, name)]);
    }
    else if (part.examples) [found.input[name]] = part.examples;
    else if (kind === "text") found.input[name] = listed(part, texts(inner, part));
    else if (kind === "choice") found.input[name] = listed(part, [inner.enum[0]]);
    else return null;
  }
  return found;
}

/** Return the names of the fields: the required ones, or the first of alternatives, with those that these require. */
function wanted(schema, root) {
  const ways = (schema.anyOf ?? schema.oneOf ?? []).map(({ required }) => required ?? []);
  const first = leading(schema, root);
  const way = ways.find((names) => names.every((name) => first.has(name))) ?? [];
  const needed = new Set([...(schema.required ?? []), ...way].flatMap((name) => [name, ...(schema.dependentRequired?.[name] ?? [])]));
  return Object.keys(schema.properties ?? {}).filter((name) => needed.has(name));
}

function listed(part, values) {
  return !part.items ? values[0] : part.one && values.length === 1 ? values[0] : values;
}

function texts(inner, part) {
  const given = inner.examples ?? TEXTS;
  return part.items ? given.slice(0, 2) : given.slice(0, 1);
}

function fileName(part, name) {
  const ends = part[SUFFIXES] ?? [""];
  return `${name === "files" ? "file" : name}${ends.find((end) => end in MAKERS) ?? ends[0]}`;
}

/** Return a file of the example; null for one that the page cannot make. */
export async function made(name, columns) {
  if (!isMade(name, columns)) return null;
  const blob = await MAKERS[ending(name)](columns);
  return new File([blob], name, { type: blob.type });
}

/** Return true for a file that the page can make. */
export const isMade = (name, columns) => ending(name) in MAKERS && (ending(name) !== ".csv" || columns.length > 0);

const ending = (name) => name.slice(name.lastIndexOf("."));

/** Return a file that the page ships. */
async function shipped(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`The page lacks its file ${name}.`);
  return answer.blob();
}

/** Return a table with a model's columns, as CSV: numbers, or the words that a column may have. */
function sheet(columns) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const value = (row, { words }, column) => (words ? quoted(words[(row + column) % words.length]) : (row + 1) * (column + 1));
  const lines = Array.from({ length: ROWS }, (_, row) => columns.map((each, column) => value(row, each, column)).join(","));
  return new Blob([[columns.map(({ name }) => quoted(name)).join(","), ...lines, ""].join("\n")], { type: "text/csv" });
}

/** Draw a hill with a house and a tree under a sky. */
function picture() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [640, 480];
  const draw = canvas.getContext("2d");
  const sky = draw.createLinearGradient(0, 0, 0, 480);
  sky.addColorStop(0, "#6ea0e1");
  sky.addColorStop(1, "#cddcf0");
  const shape = (colour, path) => { draw.fillStyle = colour; draw.beginPath(); path(); draw.fill(); };
  shape(sky, () => draw.rect(0, 0, 640, 480));
  shape("#fae182", () => draw.arc(535, 75, 35, 0, 2 * Math.PI));
  shape("#567d3c", () => draw.ellipse(350, 600, 550, 300, 0, 0, 2 * Math.PI));
  shape("#be9678", () => draw.rect(180, 220, 140, 110));
  shape("#8c3c32", () => { draw.moveTo(160, 220); draw.lineTo(340, 220); draw.lineTo(250, 150); });
  shape("#50371e", () => { draw.rect(235, 270, 35, 60); draw.rect(440, 240, 15, 100); });
  shape("#2d5f2d", () => draw.arc(447, 215, 55, 0, 2 * Math.PI));
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Make a recording of tones: 3 s, 16,000 samples per second, 16 bits, as WAV (RIFF, PCM). */
function recording() {
  const rate = 16000;
  const count = 3 * rate;
  const view = new DataView(new ArrayBuffer(44 + 2 * count));
  const word = (at, text) => [...text].forEach((each, index) => view.setUint8(at + index, each.charCodeAt(0)));
  word(0, "RIFF"); word(8, "WAVEfmt "); word(36, "data");
  for (const [at, value] of [[4, 36 + 2 * count], [16, 16], [24, rate], [28, 2 * rate], [40, 2 * count]]) view.setUint32(at, value, true);
  for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]]) view.setUint16(at, value, true);
  for (let at = 0; at < count; at += 1) view.setInt16(44 + 2 * at, 9000 * Math.sin((2 * Math.PI * (at < rate ? 220 : 330) * at) / rate), true);
  return new Blob([view], { type: "audio/wav" });
}
