// Webhook endpoints, their latest deliveries, and deliveries that failed for good.
import { call, get } from "../api.js";
import { fill, h, note, section, table } from "../dom.js";
import { button } from "../jobs/actions.js";
import { deliveryTable } from "../jobs/deliveries.js";
import { badge } from "../jobs/parts.js";
import { time } from "../words.js";

export async function webhooks(signal) {
  const body = h("div", { class: "stack" });
  const latest = h("div", { class: "stack" });
  async function read() {
    const { endpoints } = await get("/v1/webhook-endpoints", { signal });
    const dead = await get("/v1/deliveries/dead-letters", { signal });
    const context = { latest, read, signal };
    fill(body,
      endpoints.length ? table("Webhook endpoints", ["Receiver", "State", "Events", "Models", "Created", ""], endpoints.map((endpoint) => row(endpoint, context)))
        : h("p", { class: "quiet" }, "There are no endpoints. Create one below, or with ", h("code", {}, "penstock webhooks create URL"), "."),
      latest,
      h("h3", {}, "Deliveries that failed for good"),
      dead.deliveries.length ? [deliveryTable(dead.deliveries), h("div", { class: "buttons" }, sendAll(read))] : h("p", {}, "There are none."));
  }
  await read();
  return section("Webhooks", body, creation(read));
}

/** Events of an endpoint, and whether a new one gets them unless asked otherwise. */
const EVENTS = { "job.succeeded": true, "job.failed": true, "job.canceled": true, "job.expired": true, "job.queued": false, "job.started": false, "job.progress": false };

/** Return the form of a new endpoint; the answer's secret is shown once. */
function creation(read) {
  const url = h("input", { id: "hook-url", type: "url", required: true, placeholder: "https://example.org/hooks/penstock", autocomplete: "off" });
  const boxes = Object.entries(EVENTS).map(([name, checked]) => [name, h("input", { type: "checkbox", id: `hook-${name}`, checked })]);
  const said = h("div", { role: "status" });
  const send = async (event) => {
    event.preventDefault();
    try {
      const events = boxes.filter(([, box]) => box.checked).map(([name]) => name);
      const { secret } = await call("POST", "/v1/webhook-endpoints", { body: { url: url.value.trim(), events } });
      url.value = "";
      fill(said, h("p", {}, "The endpoint is created. Its receiver checks signatures with this secret, which is shown only now:"), h("pre", { tabindex: "0" }, secret));
      await read();
    } catch (error) {
      fill(said, h("p", { class: "problem" }, error.message), h("ul", {}, (error.errors ?? []).map((issue) => h("li", {}, h("code", {}, issue.pointer), " ", issue.detail))));
    }
  };
  return h("details", { class: "more" }, h("summary", {}, "New endpoint"),
    h("form", { onsubmit: send },
      h("div", { class: "field" }, h("label", { for: "hook-url" }, "URL of the receiver"), url),
      h("fieldset", { class: "field" }, h("legend", {}, "Events"), h("div", { class: "choices" }, boxes.map(([name, box]) => h("span", {}, box, h("label", { for: box.id }, name))))),
      h("div", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Create the endpoint")), said));
}

function sendAll(read) {
  return button("Send all again", "Send all failed deliveries again?", "Receivers get each event with the same id and the same bytes. Deliveries to a disabled endpoint stay here.", async () => {
    const { deliveries } = await call("POST", "/v1/deliveries/dead-letters/redeliver");
    note(deliveries === 1 ? "One delivery is sent again." : `${deliveries} deliveries are sent again.`);
    await read();
  });
}

function row(endpoint, { latest, read, signal }) {
  const path = `/v1/webhook-endpoints/${endpoint.id}`;
  const shown = async () => {
    const { deliveries } = await get(`${path}/deliveries`, { signal });
    fill(latest, h("h3", { tabindex: "-1" }, `Deliveries to ${endpoint.url}`), deliveries.length ? deliveryTable(deliveries) : h("p", {}, "There are none yet."));
    latest.firstChild.focus();
  };
  const test = async () => {
    const delivery = await call("POST", `${path}/test`);
    note("A test event is sent.");
    const done = await get(`/v1/deliveries/${delivery.id}`, { query: { wait: 20 }, signal });
    note(`The state of the test's delivery: ${done.state}.`, done.state === "delivered" ? "good" : "bad");
  };
  const enable = async () => { await call("PATCH", path, { body: { enabled: true } }); note("The endpoint is enabled."); await read(); };
  const remove = async () => { await call("DELETE", path); note("The endpoint is deleted."); fill(latest); await read(); };
  return [
    h("span", { class: "url" }, endpoint.url, endpoint.description && h("span", { class: "quiet" }, ` ${endpoint.description}`)),
    h("span", {}, badge(endpoint.enabled ? "enabled" : "disabled"), endpoint.disabled_reason && ` ${endpoint.disabled_reason}`),
    endpoint.events.join(", "), endpoint.models.join(", ") || "all", time(endpoint.created_at),
    h("span", { class: "buttons" }, plain("Deliveries", shown),
      endpoint.enabled ? plain("Test", test) : button("Enable", "Enable this endpoint?", "Its receiver gets the events of jobs that end from now on.", enable),
      button("Delete", "Delete this endpoint?", "Its receiver gets no more events.", remove, "danger")),
  ];
}

/** Return a button that acts at once; an error is a message. */
function plain(name, act) {
  return h("button", { type: "button", onclick: () => act().catch((error) => note(error.message, "bad")) }, name);
}
