// Operate: queues, models, workers, drop rules, dead letters, webhooks, usage, limits and tenants - as far as the key's scopes reach.
import { fill, h } from "../dom.js";
import { may } from "../session.js";
import { deadLetters } from "./dead_letters.js";
import { drops } from "./drops.js";
import { limits } from "./limits.js";
import { models } from "./models.js";
import { queues } from "./queues.js";
import { subscriptions } from "./subscriptions.js";
import { tenants } from "./tenants.js";
import { usage } from "./usage.js";
import { webhooks } from "./webhooks.js";
import { workers } from "./workers.js";

const PARTS = [
  { scope: "monitor", make: queues }, { scope: "monitor", make: workers }, { scope: "monitor", make: drops }, { scope: "read", make: subscriptions }, { scope: "read", make: models },
  { scope: "admin", make: deadLetters }, { scope: "webhooks", make: webhooks }, { scope: "read", make: usage },
  { scope: null, make: limits }, { scope: "admin", make: tenants },
];

export async function show(main, { signal }) {
  const shown = PARTS.filter(({ scope }) => scope === null || may(scope));
  const lacking = [...new Set(PARTS.filter((part) => !shown.includes(part)).map(({ scope }) => scope))];
  const places = shown.map(() => h("div"));
  fill(main, h("h1", {}, "Operate"), lacking.length > 0 && h("p", { class: "quiet" }, `The key lacks the scopes ${lacking.join(", ")}: their parts are not shown.`), h("div", { class: "stack" }, places));
  await Promise.all(shown.map(async ({ make }, index) => {
    try {
      fill(places[index], await make(signal));
    } catch (error) {
      if (!signal.aborted) fill(places[index], h("p", { class: "problem", role: "alert" }, error.message));
    }
  }));
}
