// Uploads: the file goes to the object store by a signed link. XMLHttpRequest, because fetch has no upload progress.
import { call, reachable } from "../api.js";

/** Upload a file and return its `media://` reference; `progress` gets the sent share. */
export async function upload(file, progress, signal) {
  const place = await call("POST", "/v1/uploads", {
    body: { filename: file.name, content_type: file.type || "application/octet-stream", size_bytes: file.size }, signal,
  });
  await put(place, file, progress, signal);
  return place.media;
}

function put({ method, url, headers }, file, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, reachable(url));
    for (const [name, value] of Object.entries(headers)) if (name.toLowerCase() !== "content-length") request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => progress(event.loaded / event.total);
    request.onload = () => (request.status < 300 ? resolve() : reject(new Error(`The object store refused the file (${request.status}).`)));
    request.onerror = () => reject(new Error("The file did not arrive. If the object store is S3, its bucket must allow this page's address (CORS): `penstock doctor` checks it."));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}
