// Uploads in parts: several parts at once, each with its MD5. After a failure, parts that arrived are not sent again.
import { createMD5 } from "hash-wasm";
import { call, Problem, sleep } from "../api.js";
import { put, wanted } from "./upload.js";

/** Parts on the way at once: a browser opens six connections to a host, and the page needs some. */
const AT_A_TIME = 3;
/** Milliseconds before each further try of a part. */
const PAUSES_MS = [500, 1000, 2000, 4000];

/** The Idempotency-Key of each file whose upload began in this tab: the same file finds its parts again. */
const begun = new Map();

/** Upload a file in parts and return its `media://` reference; `progress` gets the sent share. */
export async function uploadInParts(file, progress, signal) {
  const about = `${file.name} ${file.size} ${file.lastModified}`;
  if (!begun.has(about)) begun.set(about, newKey());
  const place = await again(() => call("POST", "/v1/uploads", { body: { ...wanted(file), multipart: true }, headers: { "Idempotency-Key": begun.get(about) }, signal }), signal);
  if (!place.uploaded) {
    const path = `/v1/uploads/${place.media.slice("media://".length)}`;
    const digests = await sendAll(file, path, place, progress, signal);
    await again(async () => call("POST", `${path}/complete`, { body: { size_bytes: file.size, etag: await joined(digests) }, signal }), signal);
  }
  begun.delete(about);
  return place.media;
}

/** Send the parts that have not arrived and return the MD5 of each, in order. The first failure stops the others. */
async function sendAll(file, path, place, progress, signal) {
  const stop = new AbortController();
  const both = AbortSignal.any([signal, stop.signal]);
  const arrived = new Map(place.parts.map((part) => [part.number, part]));
  const sent = new Map();
  const digests = [];
  const waiting = parts(file, place.part_bytes).values();
  const worker = async () => {
    for (const part of waiting) {
      const told = (bytes) => { sent.set(part.number, bytes); progress([...sent.values()].reduce((sum, each) => sum + each, 0) / file.size); };
      digests[part.number - 1] = await sendPart(file, path, part, arrived.get(part.number), told, both);
    }
  };
  try {
    await Promise.all(Array.from({ length: AT_A_TIME }, worker));
  } catch (error) {
    stop.abort();
    throw error;
  }
  return digests;
}

function parts(file, size) {
  return Array.from({ length: Math.ceil(file.size / size) }, (_, index) => ({ number: index + 1, blob: file.slice(index * size, (index + 1) * size) }));
}

/** Send a part unless it arrived before; each try has a link of its own. */
async function sendPart(file, path, { number, blob }, known, told, signal) {
  const digest = await md5(blob).catch(() => { throw new Error(`${file.name} cannot be read, or was changed meanwhile. Choose it again.`); });
  if (known?.etag !== digest || known.size_bytes !== blob.size) {
    await again(async () => {
      const link = await call("POST", `${path}/parts`, { body: { number, size_bytes: blob.size }, signal });
      await put({ ...link, headers: { ...link.headers, "Content-MD5": base64(digest) } }, blob, told, signal);
    }, signal);
  }
  told(blob.size);
  return digest;
}

/** Do it, and again after failures that may pass. */
async function again(act, signal) {
  for (const pause of PAUSES_MS) {
    try {
      return await act();
    } catch (error) {
      if (signal.aborted || !(error instanceof Problem) || !error.retryable) throw error;
      await sleep(pause, signal);
    }
  }
  return act();
}

async function md5(blob) {
  const hasher = await createMD5();
  const reader = blob.stream().getReader();
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) hasher.update(chunk.value);
  return hasher.digest("hex");
}

/** Return the tag of the joined file: the MD5 of the parts' MD5s, and their number. */
async function joined(digests) {
  const hasher = await createMD5();
  for (const digest of digests) hasher.update(octets(digest));
  return `${hasher.digest("hex")}-${digests.length}`;
}

const octets = (digest) => Uint8Array.from(digest.match(/../g), (pair) => parseInt(pair, 16));
const base64 = (digest) => btoa(String.fromCharCode(...octets(digest)));

function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
