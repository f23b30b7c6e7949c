// The error of a job: its code, its sentence, and what to do.
import { h } from "../dom.js";

const REMEDIES = {
  media_not_found: "Upload the file again and submit a new job: uploads are deleted after a while.",
  media_unreadable: "Check the file with a program of its kind, and submit a readable one.",
  media_too_large: "Submit a smaller file. The model's limits stand in the form under Submit.",
  media_refused: "Upload the file, or ask the operator to allow its host or bucket.",
  processor_failed: "The model failed, perhaps on every input. Its lines below and `penstock logs` name the place in its code: give the job's id to the operator.",
  model_unavailable: "Ask the operator: the view Operate and `penstock models check` show what is wrong with the model.",
  model_load_failed: "Ask the operator: the view Operate and `penstock doctor` show the last lines of the model's load. It is tried again on other machines.",
  worker_lost: "Its workers ended while they ran it, often for lack of memory. Try a smaller input, or ask the operator to look at the worker's log.",
  execution_timeout: "Submit it with a longer execution_timeout, or a smaller input.",
  queue_expired: "No worker took it in time. Submit it again when workers run, or with a longer queue_ttl.",
};

/** Return the error as a box. */
export function errorBox(error, title = "Error") {
  const remedy = REMEDIES[error.code] ?? (error.retryable ? "A retry may help: the cause can be temporary." : "A retry gives the same error. Change the input, then submit a new job.");
  return h("div", { class: "problem-box", role: "group", "aria-label": title },
    h("p", {}, h("code", {}, error.code), " ", h("strong", {}, error.detail || error.title)),
    error.errors.length > 0 && h("ul", {}, error.errors.map((issue) => h("li", {}, issue.pointer && h("code", {}, issue.pointer), " ", issue.detail))),
    h("p", {}, h("strong", {}, "What to do: "), remedy));
}
