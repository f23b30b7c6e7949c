// Files of the input: dropped or chosen, and uploaded at once; or references to files that lie elsewhere.
import { fill, h, newId, prose } from "../dom.js";
import { session } from "../session.js";
import { bytes } from "../words.js";
import { labelled } from "./fields.js";
import { upload } from "./upload.js";

/** Files of a list that are uploaded at once. */
const AT_A_TIME = 3;

/** Return the field of a file, or of a list of files: `schema.one` says that one file alone is no list. */
export function mediaField(name, schema, required, context) {
  const about = { ...schema, description: schema.description?.replace(/ media:\/\/<upload>.*$/, "") };
  return schema.type === "array" ? several(name, about, required, context) : single(name, about, required, context);
}

function single(name, schema, required, context) {
  const file = slot(name, context);
  file.reference.required = required;
  const made = labelled(name, schema, required, file.reference, file.value, file.set);
  made.element.insertBefore(zone({ accept: schema["x-suffixes"] }, ([first]) => file.take(first), file.state), file.reference);
  return made;
}

function several(name, schema, required, context) {
  const files = [];
  const rows = h("ol", { class: "items" });
  const wrong = h("p", { class: "problem", hidden: true });
  const say = (text) => { wrong.hidden = false; fill(wrong, text); };
  const filled = () => files.filter((file) => file.value() !== undefined);
  const most = schema.maxItems ?? Infinity;

  function add() {
    const file = slot(name, context);
    file.removal = h("button", { type: "button", onclick: () => remove(file, row) }, "Remove");
    const row = h("li", {}, h("div", { class: "buttons one-file" }, file.reference, file.removal), file.state);
    files.push(file);
    rows.append(row);
    number();
    return file;
  }
  function remove(file, row) {
    file.stop();
    files.splice(files.indexOf(file), 1);
    row.remove();
    if (!files.length) add();
    number();
    context.changed();
  }
  /** Name the rows by their numbers; the browser asks for the first where the field is required. */
  function number() {
    files.forEach(({ reference, removal }, index) => {
      reference.setAttribute("aria-label", `${name} ${index + 1}`);
      removal.setAttribute("aria-label", `Remove ${name} ${index + 1}`);
      reference.required = required && index === 0;
    });
  }
  async function take(given) {
    wrong.hidden = true;
    const free = files.filter((file) => file.free());
    if (given.length + files.length - free.length > most) return say(`At most ${most} files.`);
    const waiting = given.map((each) => [free.shift() ?? add(), each]).values();
    const { done } = context.uploads.begin(new AbortController().signal);
    const worker = async () => { for (const [file, each] of waiting) if (files.includes(file)) await file.take(each); };
    await Promise.all(Array.from({ length: AT_A_TIME }, worker));
    done();
  }

  add();
  const element = h("fieldset", { class: "field" }, h("legend", {}, name, required && h("span", { class: "required" }, " required")),
    schema.description && h("p", { class: "quiet" }, prose(schema.description)), zone({ multiple: true, accept: schema["x-suffixes"] }, take), rows,
    h("button", { type: "button", onclick: () => (files.length < most ? add().reference.focus() : say(`At most ${most} files.`)) }, "Add a reference"), wrong);
  const value = () => {
    const found = filled().map((file) => file.value());
    return schema.one && found.length === 1 ? found[0] : found.length ? found : undefined;
  };
  const set = (given) => [given].flat().forEach((each, index) => (files[index] ?? add()).set(each));
  const point = (pointer, text) => {
    const control = (filled()[Number(pointer.split("/")[1])] ?? files[0]).reference;
    control.setAttribute("aria-invalid", "true");
    say(text);
    return control;
  };
  return { element, value, set, point };
}

/** Return the place onto which files are dropped; `take` gets them. */
function zone({ multiple = false, accept = [] }, take, ...inner) {
  const chooser = h("input", { type: "file", id: newId("file"), class: "unseen", multiple, accept: accept.join(",") || undefined, onchange: () => { take([...chooser.files]); chooser.value = ""; } });
  const over = (event) => { event.preventDefault(); element.classList.add("over"); };
  const dropped = (event) => {
    event.preventDefault();
    element.classList.remove("over");
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  };
  const element = h("div", { class: "drop", ondragover: over, ondragleave: () => element.classList.remove("over"), ondrop: dropped }, chooser,
    h("p", {}, multiple ? "Drop files here, or " : "Drop a file here, or ", h("label", { for: chooser.id, class: "button" }, multiple ? "choose files" : "choose a file")), inner);
  return element;
}

/** Return the parts of one file: its reference, which an upload writes, and the state of the upload. */
function slot(name, { changed, uploads }) {
  const reference = h("input", { placeholder: "media://, s3:// or https:// reference", spellcheck: "false", autocomplete: "off", oninput: () => { running?.abort(); kept = undefined; show(); changed(); } });
  const words = h("p", { role: "status" });
  const bar = h("progress", { max: "1", hidden: true, "aria-label": `Upload of ${name}` });
  const halt = h("button", { type: "button", hidden: true, onclick: () => running.abort() }, "Stop");
  const more = h("button", { type: "button", hidden: true, onclick: () => take(latest) }, "Try again");
  let running = null;
  let latest = null;
  let kept;

  function show(text = "", wrong = false) {
    words.classList.toggle("problem", wrong);
    fill(words, prose(text));
    more.hidden = !wrong || latest === null;
  }
  async function take(file) {
    running?.abort();
    const own = (running = new AbortController());
    latest = null;
    kept = undefined;
    reference.value = "";
    if (file.size > session.key.limits.upload_bytes) return show(`${file.name} has ${bytes(file.size)}: at most ${bytes(session.key.limits.upload_bytes)} may be uploaded.`, true);
    latest = file;
    bar.hidden = halt.hidden = false;
    bar.value = 0;
    show(`Uploading ${file.name} (${bytes(file.size)})`);
    const { signal, done } = uploads.begin(own.signal);
    try {
      const media = await upload(file, (share) => { if (running === own) bar.value = share; }, signal);
      if (running !== own) return;
      reference.value = media;
      show(`${file.name} (${bytes(file.size)}) is uploaded.`);
    } catch (error) {
      if (running === own && !reference.value) show(own.signal.aborted ? `The upload of ${file.name} was stopped.` : error.message, true);
    } finally {
      if (running === own) bar.hidden = halt.hidden = true;
      done();
      changed();
    }
  }
  /** Show a reference; a value that is none, such as a STAC item, is kept as it is until a file replaces it. */
  function set(given) {
    if (typeof given === "string") reference.value = given;
    else [kept] = [given, show("The value of the earlier job is kept. A file or a reference replaces it.")];
  }
  return {
    reference, state: h("div", { class: "upload" }, bar, words, halt, more), take, set,
    value: () => reference.value || kept,
    free: () => !reference.value && latest === null,
    stop: () => running?.abort(),
  };
}
