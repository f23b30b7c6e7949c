// What a person may do with a job: cancel, retry, delete. Each asks before it does.
import { call } from "../api.js";
import { fill, h, note } from "../dom.js";
import { may } from "../session.js";
import { FINAL } from "../words.js";
import { jobPath } from "./parts.js";

/** Return the buttons that fit the job's state; none for keys that may only read. */
export function actions(job, changed) {
  if (!may("submit")) return [];
  const over = FINAL.has(job.status);
  const path = `/v1/jobs/${job.id}`;
  return [
    over && h("a", { class: "button", href: `#/submit/${encodeURIComponent(job.model)}?from=${job.id}` }, "Run again with changes"),
    !over && button("Cancel", "Cancel this job?", "Its work so far is lost.", async () => { await call("POST", `${path}/cancel`); note("The job is canceled."); changed(); }),
    over && job.status !== "succeeded" && button("Retry", "Retry this job?", "Its request is submitted again as a new job. This one stays as it is.", async () => { location.hash = jobPath((await call("POST", `${path}/retry`)).id); }),
    button("Delete", "Delete this job?", "Its result and its files are deleted too. This cannot be undone.", async () => { await call("DELETE", path); note("The job is deleted."); location.hash = "#/jobs"; }, "danger"),
  ];
}

/** Return a button that asks in a dialog, and then acts. */
export function button(name, question, consequence, act, kind = "") {
  return h("button", { type: "button", class: kind, onclick: () => confirm(name, question, consequence, act, kind) }, name);
}

function confirm(name, question, consequence, act, kind) {
  const wrong = h("p", { class: "problem", role: "alert", hidden: true });
  const yes = h("button", { type: "button", class: kind || "main", onclick: run }, name);
  const dialog = h("dialog", { "aria-labelledby": "question", onclose: () => dialog.remove() },
    h("h2", { id: "question" }, question), h("p", {}, consequence), wrong,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Keep it"), yes));
  async function run() {
    yes.disabled = true;
    try {
      await act();
      dialog.close();
    } catch (error) {
      yes.disabled = false;
      wrong.hidden = false;
      fill(wrong, error.message);
    }
  }
  document.body.append(dialog);
  dialog.showModal();
}
