// Subscriptions: their state, what the keeper saw last, and why it skipped items.
import { get } from "../api.js";
import { h, section, table } from "../dom.js";
import { jobPath } from "../jobs/parts.js";
import { time } from "../words.js";

export async function subscriptions(signal) {
  const { subscriptions: found } = await get("/v1/subscriptions", { signal });
  if (!found.length) return section("Subscriptions", h("p", { class: "quiet" }, "There are none. Create one with ", h("code", {}, "penstock subscriptions create"), "."));
  const heads = ["Subscription", "State", "Model", "Catalogue", "Last look", "Seen until", "Found", "Jobs", "Reason"];
  return section("Subscriptions", table("Subscriptions", heads, found.map(row)), found.map(notes));
}

function row({ name, state, model, stac, collections, reason, jobs, ...rest }) {
  const where = h("span", { class: "url" }, `${stac}: ${collections.join(", ")}`);
  return [name, state, model, where, time(rest.last_look_at), time(rest.seen_until), rest.last_look.found, jobs, reason && h("span", { class: "problem" }, reason)];
}

/** Return the items that were passed over, and the latest decisions on items, each job with a link. */
function notes({ name, notes: made, last_look: { unread } }) {
  const passed = Object.entries(unread).map(([reason, number]) => h("p", { class: "problem" }, `${name} passed over ${number} ${number === 1 ? "item" : "items"} ${reason}.`));
  if (!made.length) return passed;
  const caption = `Latest items of ${name}`;
  const rows = made.map((note) => [time(note.at), note.item, time(note.time), note.job ? h("a", { href: jobPath(note.job) }, note.decision) : note.decision, note.reason]);
  return [passed, h("h3", {}, caption), table(caption, ["Decided", "Item", "Time of the item", "Decision", "Reason"], rows)];
}
