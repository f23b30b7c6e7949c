// A file of the input: dropped or chosen, and uploaded at once; or a reference to one that lies elsewhere.
import { fill, h, newId } from "../dom.js";
import { session } from "../session.js";
import { bytes } from "../words.js";
import { labelled } from "./fields.js";
import { upload } from "./upload.js";

export function mediaField(name, schema, required, { changed, uploads }) {
  const reference = h("input", { placeholder: "media://, s3:// or https:// reference", spellcheck: "false", autocomplete: "off", oninput: () => { uploaded = null; show(); changed(); } });
  const chooser = h("input", { type: "file", id: newId("file"), class: "unseen", onchange: () => { take(chooser.files[0]); chooser.value = ""; } });
  const state = h("p", { role: "status" });
  const bar = h("progress", { max: "1", hidden: true, "aria-label": `Upload of ${name}` });
  const zone = h("div", { class: "drop", ondragover: over, ondragleave: () => zone.classList.remove("over"), ondrop: dropped },
    chooser, h("p", {}, "Drop a file here, or ", h("label", { for: chooser.id, class: "button" }, "choose a file")), bar, state);
  let uploaded = null;
  let running = null;

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
    fill(state, words);
  }
  async function take(file) {
    if (!file) return;
    running?.abort();
    const own = (running = new AbortController());
    if (file.size > session.key.limits.upload_bytes) return show(`${file.name} has ${bytes(file.size)}: at most ${bytes(session.key.limits.upload_bytes)} may be uploaded.`, true);
    bar.hidden = false;
    bar.value = 0;
    const done = uploads.begin();
    try {
      show(`Uploading ${file.name} (${bytes(file.size)})`);
      const media = await upload(file, (share) => { bar.value = share; }, own.signal);
      uploaded = file.name;
      reference.value = media;
      show(`${file.name} (${bytes(file.size)}) is uploaded.`);
    } catch (error) {
      if (!own.signal.aborted) show(error.message, true);
    } finally {
      if (running === own) bar.hidden = true;
      done();
      changed();
    }
  }

  const made = labelled(name, { ...schema, description: schema.description?.replace(/ media:\/\/<upload>.*$/, "") }, required, reference, () => reference.value || undefined);
  made.element.insertBefore(zone, reference);
  // The commands beside the form name the file, not its upload.
  return { ...made, file: () => uploaded, value: () => reference.value || undefined, name };
}
