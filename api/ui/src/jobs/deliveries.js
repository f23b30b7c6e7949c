// The webhook deliveries of a job, with their tries.
import { call, get } from "../api.js";
import { h, note, section, table } from "../dom.js";
import { may } from "../session.js";
import { time } from "../words.js";
import { badge } from "./parts.js";

export async function deliveries(job, signal) {
  const found = (await get(`/v1/jobs/${job.id}/deliveries`, { signal })).deliveries;
  return found.length ? section("Webhook deliveries", deliveryTable(found)) : null;
}

export function deliveryTable(rows) {
  return table("Webhook deliveries", ["Event", "Receiver", "State", "Tries", "Latest try", "Next try", ""], rows.map((row) => {
    const last = row.log.at(-1);
    return [
      row.event, h("span", { class: "url" }, row.url), badge(row.state), row.tries,
      last ? `${last.status ?? "no answer"} ${last.note}, ${time(last.at)}` : "", time(row.next_attempt_at),
      may("webhooks") && h("button", { type: "button", "aria-label": `Send ${row.event} again`, onclick: () => again(row) }, "Send again"),
    ];
  }));
}

async function again(row) {
  try {
    await call("POST", `/v1/deliveries/${row.id}/redeliver`);
    note("The webhook is sent again.");
  } catch (error) {
    note(error.message, "bad");
  }
}
