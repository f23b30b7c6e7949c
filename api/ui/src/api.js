// Requests to the API. The API key lives in this module alone, and as long as the tab.

/** The service's address: this page is served below it, at `/ui/`. */
export const BASE = new URL("..", location.href.split("#")[0]).href.replace(/\/$/, "");

let key = null;
const told = new Set();
const reach = { known: true, listeners: new Set() };

export function setKey(text) {
  key = text;
}

/** Call `listener` whenever the service refuses the key. */
export function onUnauthorized(listener) {
  told.add(listener);
}

/** Call `listener` with false when the service stops answering, and with true when it answers again. */
export function onReach(listener) {
  reach.listeners.add(listener);
}

function reached(now) {
  if (now !== reach.known) reach.listeners.forEach((listener) => listener(now));
  reach.known = now;
}

/** A refusal of the API: `status`, and the fields of its problem document. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The service answered ${status}.`);
    this.status = status;
    this.code = body.code;
    this.retryable = body.retryable ?? false;
    this.errors = body.errors ?? [];
  }
}

/** Send a request and return its response; raises `Problem`. */
export async function send(method, path, { body, query, headers = {}, signal } = {}) {
  const url = new URL(BASE + path);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  const own = key === null ? {} : { Authorization: `Bearer ${key}` };
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  const text = body === undefined ? undefined : JSON.stringify(body);
  let response;
  try {
    response = await fetch(url, { method, headers: { Accept: "application/json", ...own, ...json, ...headers }, body: text, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    reached(false);
    throw new Problem(0, { detail: "The service does not answer.", retryable: true });
  }
  reached(true);
  if (response.ok) return response;
  const problem = new Problem(response.status, await response.json().catch(() => ({})));
  if (problem.status === 401) told.forEach((listener) => listener());
  throw problem;
}

/** Send a request and return the JSON of its answer; null without one. */
export async function call(method, path, options) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : response.json();
}

export const get = (path, options) => call("GET", path, options);

/** Yield the events of a stream as `{type, id, data}`, reconnecting after a loss, until it is over or aborted. */
export async function* stream(path, signal, { ends = () => false } = {}) {
  let id = null;
  let pause = 500;
  while (!signal.aborted) {
    try {
      const headers = { Accept: "text/event-stream", ...(id === null ? {} : { "Last-Event-ID": id }) };
      const response = await send("GET", path, { headers, signal });
      for await (const event of parsed(response.body)) {
        pause = 500;
        id = event.id ?? id;
        yield event;
        if (ends(event)) return;
      }
    } catch (error) {
      if (signal.aborted || (error instanceof Problem && [401, 403, 404, 410].includes(error.status))) return;
    }
    await sleep(pause, signal);
    pause = Math.min(pause * 2, 15000);
  }
}

async function* parsed(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value.replaceAll("\r\n", "\n");
    const blocks = waiting.split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const event = fields(block);
      if (event !== null) yield event;
    }
  }
}

function fields(block) {
  const event = { type: "message", id: null };
  const data = [];
  for (const line of block.split("\n")) {
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
    if (name === "event") event.type = value;
    else if (name === "id") event.id = value;
    else if (name === "data") data.push(value);
  }
  return data.length ? { ...event, data: JSON.parse(data.join("\n")) } : null;
}

/** Wait some milliseconds, or until the signal. */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/** Return a signed link as this page reaches it: those of a local store lead to the address that the page came from. */
export function reachable(url) {
  const at = url.indexOf("/v1/local/");
  return at < 0 ? url : BASE + url.slice(at);
}
