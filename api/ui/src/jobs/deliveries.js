// The webhook deliveries of a job, with their tries.
import { call, get } from "../api.js";
import { fill, h, note, section, table } from "../dom.js";
import { may } from "../session.js";
import { time } from "../words.js";
import { badge } from "./parts.js";

/** Seconds to wait for the outcome of a delivery that is sent again. */
const WAIT_S = 20;

export async function deliveries(job, signal) {
  const found = (await get(`/v1/jobs/${job.id}/deliveries`, { signal })).deliveries;
  return found.length ? section("Webhook deliveries", deliveryTable(found)) : null;
}

export function deliveryTable(rows) {
  return table("Webhook deliveries", ["Event", "Receiver", "State", "Tries", "Latest try", "Next try", ""], rows.map((row) => {
    const last = row.log.at(-1);
    const state = h("span", { role: "status" }, badge(row.state));
    return [
      row.event, h("span", { class: "url" }, row.url), state, row.tries,
      last ? `${last.status ?? "no answer"} ${last.note}, ${time(last.at)}` : "", time(row.next_attempt_at),
      may("webhooks") && h("button", { type: "button", "aria-label": `Send again: ${row.event}`, onclick: () => again(row, state) }, "Send again"),
    ];
  }));
}

/** Send an event again, and show what becomes of it. */
async function again(row, state) {
  try {
    await call("POST", `/v1/deliveries/${row.id}/redeliver`);
    fill(state, badge("pending"));
    note("The webhook is sent again.");
    fill(state, badge((await get(`/v1/deliveries/${row.id}`, { query: { wait: WAIT_S } })).state));
  } catch (error) {
    note(error.message, "bad");
  }
}
