// The key: asked once, kept in memory, and what it may do.
import { get, onUnauthorized, Problem, setKey } from "./api.js";
import { fill, h } from "./dom.js";

export const session = { key: null };

/** The key in the session storage of this tab, where the person wanted it kept: it survives a reload. */
const kept = {
  name: "penstock.key",
  get: () => sessionStorage.getItem(kept.name),
  set: (text) => sessionStorage.setItem(kept.name, text),
  remove: () => sessionStorage.removeItem(kept.name),
};

/** Return true where a reload does not forget the key. */
export const isKept = () => kept.get() !== null;

/** Forget a kept key, and the one in memory. */
export function forget() {
  kept.remove();
  location.reload();
}

/** Return true where the key has a scope. Views show no buttons for what a key may not do. */
export function may(scope) {
  return session.key?.scopes.includes(scope) ?? false;
}

/** Ask the service whose key this is, and the person for a key where the service wants one. */
export async function open(main) {
  setKey(kept.get());
  try {
    session.key = await get("/v1/key");
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 401) throw error;
    kept.remove();
    session.key = await ask(main);
  }
}

/** Call `again` when the key has become invalid. */
export function onLost(again) {
  onUnauthorized(() => {
    if (session.key === null) return;
    session.key = null;
    again();
  });
}

function ask(main) {
  return new Promise((resolve) => {
    const input = h("input", {
      id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "key-note",
    });
    const keep = h("input", { id: "keep", type: "checkbox", "aria-describedby": "keep-note" });
    const wrong = h("p", { class: "problem", role: "alert", hidden: true });
    const enter = async (event) => {
      event.preventDefault();
      setKey(input.value.trim());
      try {
        resolve(await get("/v1/key"));
        if (keep.checked) kept.set(input.value.trim());
      } catch (error) {
        setKey(null);
        wrong.hidden = false;
        fill(wrong, error.status === 401 ? "This key is not valid: it may be mistyped, expired or revoked." : error.message);
        input.select();
      }
    };
    fill(
      main,
      h("form", { class: "card key-form", onsubmit: enter },
        h("h1", {}, "API key"),
        h("p", { id: "key-note" }, "The service asks for an API key. The page keeps it in this tab's memory, and forgets it when you close the tab. An operator creates keys with ", h("code", {}, "penstock keys create"), "."),
        h("label", { for: "key" }, "Key"), input,
        h("div", {}, keep, " ", h("label", { for: "keep" }, "Keep it when I reload the page"), h("p", { class: "quiet", id: "keep-note" }, "In this tab's session storage, until you close the tab. Not on a shared computer.")), wrong,
        h("button", { class: "main", type: "submit" }, "Open")),
    );
    input.focus();
  });
}
