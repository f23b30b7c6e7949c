// Run a model on a file: node dist/run.js MODEL FIELD FILE [INPUT], such as csmask scene scene.tif '{"outputs": ["stats"]}'
import { readFile, writeFile } from "node:fs/promises";
import { basename } from "node:path";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Job = components["schemas"]["JobView"];

const [model, field, path, input] = process.argv.slice(2);
if (!model || !field || !path) {
  fail("usage: node dist/run.js MODEL FIELD FILE [INPUT]");
}
const key = process.env["PENSTOCK_API_KEY"];
const client = createClient<paths>({
  baseUrl: process.env["PENSTOCK_URL"] ?? "http://127.0.0.1:8080",
  headers: key ? { Authorization: `Bearer ${key}` } : {},
});

function fail(why: string): never {
  console.error(why);
  process.exit(1);
}

function taken<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) {
    const problem = answer.error as { code?: string; detail?: string } | undefined;
    fail(`${problem?.code}: ${problem?.detail}`);
  }
  return answer.data;
}

async function submitted(): Promise<Job> {
  const form = new FormData();
  form.append("model", model!);
  form.append("input", input ?? "{}");
  form.append(field!, new Blob([await readFile(path!)]), basename(path!));
  return taken(
    await client.POST("/v1/jobs", {
      // The types describe the form's fields; the files make it multipart.
      body: form as never,
      bodySerializer: (body) => body as unknown as FormData,
    }),
  );
}

async function ended(job: Job): Promise<Job> {
  while (!["succeeded", "failed", "canceled", "expired"].includes(job.status)) {
    job = taken(await client.GET("/v1/jobs/{job_id}", { params: { path: { job_id: job.id }, query: { wait: 60 } } }));
    console.error(job.phase ?? job.status, job.progress.done, job.progress.total ?? "");
  }
  return job;
}

const job = await ended(await submitted());
if (job.status !== "succeeded") {
  fail(`${job.error?.code}: ${job.error?.detail}`);
}
for (const artifact of job.artifacts) {
  const answer = await client.GET("/v1/jobs/{job_id}/artifacts/{name}", {
    params: { path: { job_id: job.id, name: artifact.name } },
    parseAs: "arrayBuffer",
  });
  await writeFile(artifact.name, Buffer.from(taken(answer) as ArrayBuffer));
}
console.log(JSON.stringify({ id: job.id, status: job.status, files: job.artifacts.map((each) => each.name) }));
