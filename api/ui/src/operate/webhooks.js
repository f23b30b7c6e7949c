// Webhook endpoints, their latest deliveries, and deliveries that failed for good.
import { call, get } from "../api.js";
import { fill, h, note, section, table } from "../dom.js";
import { button } from "../jobs/actions.js";
import { deliveryTable } from "../jobs/deliveries.js";
import { badge } from "../jobs/parts.js";
import { time } from "../words.js";

export async function webhooks(signal) {
  const { endpoints } = await get("/v1/webhook-endpoints", { signal });
  const dead = await get("/v1/deliveries/dead-letters", { signal });
  const latest = h("div", { role: "status" });
  return section("Webhooks",
    endpoints.length ? table("Webhook endpoints", ["Receiver", "State", "Events", "Models", "Created", ""], endpoints.map((endpoint) => row(endpoint, latest, signal)))
      : h("p", { class: "quiet" }, "There are no endpoints. ", h("code", {}, "penstock webhooks create URL"), " creates one."),
    latest,
    h("h3", {}, "Deliveries that failed for good"),
    dead.deliveries.length ? h("div", { class: "stack" }, deliveryTable(dead.deliveries), h("div", { class: "buttons" }, button("Send all again", "Send all failed deliveries again?", "Receivers get each event with the same id and the same bytes.", async () => {
      const { deliveries } = await call("POST", "/v1/deliveries/dead-letters/redeliver");
      note(`${deliveries} deliveries are sent again.`);
    }))) : h("p", {}, "There are none."));
}

function row(endpoint, latest, signal) {
  const path = `/v1/webhook-endpoints/${endpoint.id}`;
  const shown = async () => {
    const { deliveries } = await get(`${path}/deliveries`, { signal });
    fill(latest, h("h3", {}, `Deliveries to ${endpoint.url}`), deliveries.length ? deliveryTable(deliveries) : h("p", {}, "There are none."));
  };
  const test = async () => {
    try {
      const delivery = await call("POST", `${path}/test`);
      const done = await get(`/v1/deliveries/${delivery.id}`, { query: { wait: 20 }, signal });
      note(`The test was ${done.state}.`, done.state === "delivered" ? "good" : "bad");
    } catch (error) {
      note(error.message, "bad");
    }
  };
  return [
    h("span", { class: "url" }, endpoint.url, endpoint.description && h("span", { class: "quiet" }, ` ${endpoint.description}`)),
    h("span", {}, badge(endpoint.enabled ? "enabled" : "disabled"), endpoint.disabled_reason && ` ${endpoint.disabled_reason}`),
    endpoint.events.join(", "), endpoint.models.join(", ") || "all", time(endpoint.created_at),
    h("span", { class: "buttons" }, h("button", { type: "button", onclick: shown }, "Deliveries"), h("button", { type: "button", onclick: test }, "Test"),
      button("Delete", "Delete this endpoint?", "Its receiver gets no more events.", async () => { await call("DELETE", path); note("The endpoint is deleted."); dispatchEvent(new HashChangeEvent("hashchange")); }, "danger")),
  ];
}
