// The filters of the list of jobs: a form whose values stand in the page's address.
import { h } from "../dom.js";
import { STATUSES } from "../words.js";

/** Return the form; `models` are names, `change` gets the new values. */
export function filters(values, models, change) {
  const pick = (name, label, options) =>
    h("div", {}, h("label", { for: `filter-${name}` }, label),
      h("select", { id: `filter-${name}`, name, onchange: submit },
        h("option", { value: "" }, "any"),
        options.map((option) => h("option", { value: option, selected: option === values.get(name) }, option))));
  const metadata = h("input", {
    id: "filter-metadata", name: "metadata", placeholder: "campaign=spring", value: values.get("metadata") ?? "",
    pattern: "[^=]+=.*", title: "NAME=VALUE", autocomplete: "off", onchange: submit,
  });
  const form = h("form", { class: "filters", role: "search", "aria-label": "Filter jobs", onsubmit: submit },
    pick("status", "Status", STATUSES), pick("model", "Model", models),
    h("div", {}, h("label", { for: "filter-metadata" }, "Metadata"), metadata),
    h("button", { type: "button", onclick: () => change(new URLSearchParams()) }, "Clear"));

  function submit(event) {
    event.preventDefault();
    if (!metadata.reportValidity()) return;
    const chosen = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) chosen.set(name, value);
    change(chosen);
  }
  return form;
}

/** Return the query of `GET /v1/jobs` for the values of the form. */
export function jobQuery(values) {
  const query = { status: values.get("status"), model: values.get("model") };
  const [name, ...value] = (values.get("metadata") ?? "").split("=");
  return name ? { ...query, [`metadata.${name}`]: value.join("=") } : query;
}
