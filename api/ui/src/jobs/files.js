// The artifacts of a job, to download by signed links.
import { get, reachable } from "../api.js";
import { h, section, table } from "../dom.js";
import { bytes } from "../words.js";

export async function files(job, signal) {
  if (!job.artifacts.length) return null;
  const { links } = await get(`/v1/jobs/${job.id}/links`, { signal });
  const urls = new Map(links.filter((link) => link.kind === "artifact").map((link) => [link.name, reachable(link.url)]));
  return section("Artifacts",
    table("Artifacts", ["Name", "Type", "Size", "SHA-256"], job.artifacts.map((artifact) => [
      h("a", { href: urls.get(artifact.name), download: artifact.name }, artifact.name),
      artifact.content_type.split(";")[0], bytes(artifact.size_bytes), h("code", { title: artifact.sha256 }, artifact.sha256.slice(0, 12)),
    ])));
}
