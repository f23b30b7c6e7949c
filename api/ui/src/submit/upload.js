// Uploads: the file goes to the object store by a signed link. XMLHttpRequest, because fetch has no upload progress.
import { call, Problem, reachable } from "../api.js";

/** Larger files are sent in parts, as the Python client does. */
const IN_PARTS_FROM_BYTES = 16 << 20;

/** Upload a file and return its `media://` reference; `progress` gets the sent share. */
export async function upload(file, progress, signal) {
  if (file.size > IN_PARTS_FROM_BYTES) return (await import("./parts.js")).uploadInParts(file, progress, signal);
  const place = await call("POST", "/v1/uploads", { body: wanted(file), signal });
  await put(place, file, (sent) => progress(sent / file.size), signal);
  return place.media;
}

/** Return the request for a file's upload. */
export function wanted(file) {
  return { filename: file.name, content_type: file.type || "application/octet-stream", size_bytes: file.size };
}

/** Send a file, or a part of one, by its link; `progress` gets the sent bytes. Raises `Problem`; an abort too ends it. */
export function put({ method, url, headers }, body, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const refuse = (status, detail) => reject(new Problem(status, { detail, retryable: true }));
    request.open(method, reachable(url));
    for (const [name, value] of Object.entries(headers)) if (name.toLowerCase() !== "content-length") request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => progress(event.loaded);
    request.onload = () => (request.status < 300 ? resolve() : refuse(request.status, `The object store refused the file (${request.status}).`));
    request.onerror = () => refuse(0, "The file did not arrive. Check the connection. If the object store is S3, its bucket must allow this page's address (CORS): `penstock doctor` checks it.");
    request.onabort = () => refuse(0, "The upload was stopped.");
    if (signal.aborted) return refuse(0, "The upload was stopped.");
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(body);
  });
}
