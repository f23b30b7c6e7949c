// The key: asked once, kept in memory, and what it may do.
import { get, onUnauthorized, Problem, setKey } from "./api.js";
import { fill, h } from "./dom.js";

export const session = { key: null };

/** Return true where the key has a scope. Views show no buttons for what a key may not do. */
export function may(scope) {
  return session.key?.scopes.includes(scope) ?? false;
}

/** Ask the service whose key this is, and the person for a key where the service wants one. */
export async function open(main) {
  try {
    session.key = await get("/v1/key");
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 401) throw error;
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
    const wrong = h("p", { class: "problem", role: "alert", hidden: true });
    const enter = async (event) => {
      event.preventDefault();
      setKey(input.value.trim());
      try {
        resolve(await get("/v1/key"));
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
        h("p", { id: "key-note" }, "The service asks for an API key. The page keeps it in this tab's memory, and forgets it when you reload or close the tab. An operator creates keys with ", h("code", {}, "penstock keys create"), "."),
        h("label", { for: "key" }, "Key"), input, wrong,
        h("button", { class: "main", type: "submit" }, "Open")),
    );
    input.focus();
  });
}
