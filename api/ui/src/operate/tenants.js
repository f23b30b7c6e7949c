// All tenants: their limits, what they have used of their quotas, and their keys.
import { get } from "../api.js";
import { h, section, table } from "../dom.js";
import { bytes, duration, number, time } from "../words.js";

export async function tenants(signal) {
  const found = (await get("/v1/tenants", { signal })).tenants;
  const heads = ["Tenant", "Jobs at once", "Submissions", "Device time today", "Bytes kept", "Request", "File", "Keys"];
  return section("Tenants", table("Tenants", heads, found.map(({ tenant, limits, keys, ...used }) => [
    tenant, number(limits.jobs), limits.submissions_per_s === null ? "no limit" : `${number(limits.submissions_per_s)} per second`,
    of(used.device_seconds_today, limits.device_seconds_per_day, seconds), of(used.kept_bytes, limits.kept_bytes, bytes),
    bytes(limits.body_bytes), bytes(limits.upload_bytes), keys.length ? h("ul", { class: "plain-list wide" }, keys.map(line)) : "none",
  ])));
}

const seconds = (value) => (value ? duration(value) : "0 s");

/** Return what is used of a quota in words. */
export function of(used, most, say) {
  return most === null ? `${say(used)}, no limit` : `${say(used)} of ${say(most)}`;
}

function line({ name, scopes, state, expires_at: expires }) {
  const until = state !== "active" ? `, ${state}` : expires ? `, until ${time(expires)}` : "";
  return h("li", {}, name || "without a name", h("span", { class: "quiet" }, ` ${scopes.join(", ")}${until}`));
}
