// The same job as commands to copy: curl, Python, and the command line.
import { BASE } from "../api.js";
import { copyButton, fill, h } from "../dom.js";
import { session } from "../session.js";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Return the panel; `update(request, files)` shows other commands. `files` maps input names to names of files. */
export function commands() {
  const panel = h("div", { class: "commands" });
  return {
    element: h("aside", { class: "card", "aria-label": "The same as commands" }, h("h2", {}, "The same as a command"), !session.key.open && h("p", { class: "quiet" }, "Each reads your key from the environment variable ", h("code", {}, "PENSTOCK_API_KEY"), "."), panel),
    update(request, files) {
      fill(panel, [["Command line", cli(request, files)], ["Python", python(request, files)], ["curl", curl(request, files)]].map(([name, text]) => block(name, text)));
    },
  };
}

function block(name, text) {
  return h("div", { class: "command" }, h("div", { class: "head" }, h("h3", {}, name), copyButton(name, text)),
    h("pre", { tabindex: "0" }, text));
}

function withoutFiles(request, files) {
  return Object.fromEntries(Object.entries(request.input).filter(([name]) => !(name in files)));
}

function cli(request, files) {
  const alone = Object.keys(files).length === 1 ? Object.values(files).flat() : [];
  const named = alone.length ? {} : files;
  const parameters = Object.entries({ ...named, ...withoutFiles(request, files) }).map(([name, value]) => `--param ${quoted(`${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)}`);
  const metadata = Object.entries(request.metadata ?? {}).map(([name, value]) => `--meta ${quoted(`${name}=${value}`)}`);
  const rank = request.priority ? [`--priority ${request.priority}`] : [];
  return [`PENSTOCK_URL=${BASE} penstock submit ${request.model}`, ...alone.map(quoted), ...parameters, ...metadata, ...rank, "--out result"].join(" \\\n  ");
}

function python(request, files) {
  const options = Object.fromEntries(Object.entries({ metadata: request.metadata, priority: request.priority }).filter(([, value]) => value));
  const words = [JSON.stringify(request.model), literal({ ...files, ...withoutFiles(request, files) }), 'folder="result"'];
  if (Object.keys(options).length) words.push(`options=${literal(options)}`);
  const key = session.key.open ? "" : ', api_key=os.environ["PENSTOCK_API_KEY"]';
  return `${key && "import os\n\n"}from penstock.client import Client

with Client("${BASE}"${key}) as penstock:
    result = penstock.run(${words.join(", ")})
    print(result)`;
}

function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** Return a command that prints the job with its answer; with files it sends a form. */
function curl(request, files) {
  const key = session.key.open ? "" : " \\\n  -H \"Authorization: Bearer $PENSTOCK_API_KEY\"";
  const start = `curl ${BASE}/v1/jobs${key} -H 'Prefer: wait=60'`;
  if (!Object.keys(files).length) return `${start} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(request))}`;
  const rest = withoutFiles(request, files);
  const fields = { model: request.model, ...(Object.keys(rest).length ? { input: JSON.stringify(rest) } : {}),
    ...(request.metadata ? { metadata: JSON.stringify(request.metadata) } : {}), ...(request.priority ? { priority: request.priority } : {}) };
  const sent = Object.entries(files).flatMap(([name, value]) => [value].flat().map((file) => `${name}=@${file}`));
  return [start, ...[...Object.entries(fields).map(([name, value]) => `${name}=${value}`), ...sent].map((each) => `-F ${quoted(each)}`)].join(" \\\n  ");
}
