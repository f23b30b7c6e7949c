// The frame: the views and the way between them. The address after `#` names the view.
import { onReach } from "./api.js";
import { fill, h } from "./dom.js";
import { forget, isKept, may, onLost, open, session } from "./session.js";

/** Name of the view, the scope without which it is not shown, and its module. */
const VIEWS = {
  jobs: { title: "Jobs", scope: "read", load: () => import("./jobs/list.js") },
  job: { title: "Job", scope: "read", load: () => import("./jobs/page.js") },
  submit: { title: "Submit", scope: "submit", load: () => import("./submit/view.js") },
  model: { title: "Model", scope: "read", load: () => import("./models/page.js") },
  worker: { title: "Log of a worker", scope: "admin", load: () => import("./operate/worker_log.js") },
  operate: { title: "Operate", scope: null, load: () => import("./operate/view.js") },
};
const TABS = ["jobs", "submit", "operate"];

const main = document.getElementById("main");
let leave = new AbortController();

function allowed(name) {
  const { scope } = VIEWS[name];
  return scope === null ? ["read", "monitor", "webhooks", "admin"].some(may) : may(scope) && may("read");
}

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/").map(decodeURIComponent);
  return { view: view || TABS.find(allowed), rest, query: new URLSearchParams(query) };
}

function frame(view) {
  const tab = view === "job" ? "jobs" : view;
  const links = TABS.filter(allowed).map((name) =>
    h("a", { href: `#/${name}`, "aria-current": name === tab ? "page" : undefined }, VIEWS[name].title));
  fill(document.getElementById("nav"), links);
  const { tenant, open: isOpen, name } = session.key;
  const whose = isOpen ? "No API keys" : `Tenant ${tenant}${name ? `, key ${name}` : ""}`;
  fill(document.getElementById("who"), h("span", {}, whose), isKept() && h("button", { type: "button", onclick: forget }, "Forget the key"));
}

async function show() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const { view, rest, query } = place();
  if (!VIEWS[view] || !allowed(view)) {
    frame(view);
    fill(main, h("h1", {}, VIEWS[view] ? "Not with this key" : "No such view"), h("p", {}, VIEWS[view] ? "The API key lacks the scope for this view." : "The address names no view of this page."));
    return;
  }
  frame(view);
  document.title = `${VIEWS[view].title} - Penstock`;
  fill(main, h("p", { class: "quiet" }, "Loading ..."));
  try {
    const module = await VIEWS[view].load().catch(() => { throw new Error("A part of this page did not arrive: the service does not answer, or was upgraded. Reload the page."); });
    if (!signal.aborted) await module.show(main, { rest, query, signal });
  } catch (error) {
    if (!signal.aborted) fill(main, h("h1", {}, "This did not work"), h("p", { class: "problem", role: "alert" }, error.message), h("div", { class: "buttons" }, h("button", { type: "button", onclick: show }, "Try again")));
  }
}

async function begin() {
  try {
    await open(main);
  } catch (error) {
    fill(main, h("h1", {}, "The service does not answer"), h("p", {}, error.message), h("button", { onclick: begin }, "Try again"));
    return;
  }
  await show();
}

const lost = document.getElementById("lost");
onReach((now) => fill(lost, now ? null : "The service does not answer. What you see may be old. The page tries again by itself."));
onLost(() => { leave.abort(); begin(); });
addEventListener("hashchange", async () => {
  if (location.hash === "#main") return;
  if (session.key) await show();
  if (!main.contains(document.activeElement)) main.focus({ preventScroll: true }); // else the reader was faster than the view's last part
  scrollTo(0, 0);
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
await begin();
