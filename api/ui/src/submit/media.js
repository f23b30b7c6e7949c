// A file of the input: dropped or chosen, and uploaded at once; or a reference to one that lies elsewhere.
import { fill, h, newId, prose } from "../dom.js";
import { session } from "../session.js";
import { bytes } from "../words.js";
import { labelled } from "./fields.js";
import { upload } from "./upload.js";

export function mediaField(name, schema, required, { changed, uploads }) {
  const reference = h("input", { placeholder: "media://, s3:// or https:// reference", spellcheck: "false", autocomplete: "off", oninput: () => { running?.abort(); show(); changed(); } });
  const chooser = h("input", { type: "file", id: newId("file"), class: "unseen", onchange: () => { take(chooser.files[0]); chooser.value = ""; } });
  const state = h("p", { role: "status" });
  const bar = h("progress", { max: "1", hidden: true, "aria-label": `Upload of ${name}` });
  const stop = h("button", { type: "button", hidden: true, onclick: () => running.abort() }, "Stop");
  const more = h("button", { type: "button", hidden: true, onclick: () => take(latest) }, "Try again");
  const zone = h("div", { class: "drop", ondragover: over, ondragleave: () => zone.classList.remove("over"), ondrop: dropped },
    chooser, h("p", {}, "Drop a file here, or ", h("label", { for: chooser.id, class: "button" }, "choose a file")), bar, state, stop, more);
  let running = null;
  let latest = null;

  function over(event) {
    event.preventDefault();
    zone.classList.add("over");
  }
  function dropped(event) {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files[0]);
  }
  function show(words = "", wrong = false) {
    state.classList.toggle("problem", wrong);
    fill(state, prose(words));
    more.hidden = !wrong || latest === null;
  }
  async function take(file) {
    if (!file) return;
    running?.abort();
    const own = (running = new AbortController());
    latest = null;
    reference.value = "";
    if (file.size > session.key.limits.upload_bytes) return show(`${file.name} has ${bytes(file.size)}: at most ${bytes(session.key.limits.upload_bytes)} may be uploaded.`, true);
    latest = file;
    bar.hidden = stop.hidden = false;
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
      if (running === own) bar.hidden = stop.hidden = true;
      done();
      changed();
    }
  }

  const made = labelled(name, { ...schema, description: schema.description?.replace(/ media:\/\/<upload>.*$/, "") }, required, reference, () => reference.value || undefined);
  made.element.insertBefore(zone, reference);
  return { ...made, name };
}
