// Elements of the page. Text is always text: nothing here reads HTML.

/** Return an element: `h("a", { href, onclick, class: "x" }, "text", otherElement)`. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...flat(children));
  return element;
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Return a text whose `words in backticks` are code. */
export function prose(text) {
  return (text ?? "").split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

let last = 0;

/** Return an id that no other element has. */
export function newId(prefix) {
  last += 1;
  return `${prefix}-${last}`;
}

/** Return a table from heads and rows of cells; `caption` is read by screen readers. */
export function table(caption, heads, rows) {
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))))),
    ),
  );
}

/** Return a square of a colour. */
export function swatch(colour) {
  const square = h("i", { class: "swatch" });
  square.style.background = colour;
  return square;
}

/** Return a section with a heading. */
export function section(title, ...children) {
  const id = newId("section");
  return h("section", { "aria-labelledby": id, class: "card" }, h("h2", { id }, title), ...children);
}

/** Return a list of terms and values, without those that are empty. */
export function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, kept.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Return a button that copies a text. */
export function copyButton(name, text) {
  const copy = () => navigator.clipboard.writeText(text).then(() => note(`${name}: copied.`), () => note("The browser did not allow to copy.", "bad"));
  return h("button", { type: "button", "aria-label": `Copy ${name}`, onclick: copy }, "Copy");
}

/** Show a short message at the bottom of the page; it leaves after some seconds. */
export function note(text, kind = "good") {
  const shown = h("p", { class: `note ${kind}` }, text);
  document.getElementById("notes").append(shown);
  setTimeout(() => shown.remove(), 8000);
}
