// The key of this tab, and the limits of its tenant.
import { facts, section } from "../dom.js";
import { session } from "../session.js";
import { bytes, duration, number, time } from "../words.js";

export function limits() {
  const { tenant, name, scopes, expires_at: expires, open, limits: most } = session.key;
  return section("Key and limits", facts([
    ["Tenant", tenant], ["Key", open ? "the service needs none" : name || "without a name"], ["Scopes", scopes.join(", ")], ["Expires", open ? "" : time(expires) || "never"],
    ["Jobs at once", number(most.jobs)], ["Submissions", most.submissions_per_s === null ? "no limit" : `${number(most.submissions_per_s)} per second`],
    ["Request", `at most ${bytes(most.body_bytes)}`], ["File", `at most ${bytes(most.upload_bytes)}`],
    ["Device time a day", most.device_seconds_per_day === null ? "no limit" : duration(most.device_seconds_per_day)], ["Bytes kept", most.kept_bytes === null ? "no limit" : `at most ${bytes(most.kept_bytes)}`],
  ]));
}
