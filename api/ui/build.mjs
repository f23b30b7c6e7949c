// Bundles the page into dist/: `npm run build`. Nothing in dist/ is loaded from elsewhere.
import { build } from "esbuild";
import { cp, readFile, readdir, rm, writeFile } from "node:fs/promises";

const OUT = "dist";

await rm(OUT, { recursive: true, force: true });
const { metafile } = await build({
  entryPoints: ["src/main.js", "src/style.css"],
  outdir: OUT,
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none", // licences.txt holds them
  chunkNames: "parts/[name]-[hash]",
  metafile: true,
});
await cp("src/index.html", `${OUT}/index.html`);
await cp("src/icon.svg", `${OUT}/icon.svg`);
// Written by `penstock sample`: a scene of 96 x 96 pixels, and a video.
for (const name of ["scene.tif", "video.mp4"]) await cp(`src/samples/${name}`, `${OUT}/${name}`);

// The licence of each library in the bundle.
const inputs = Object.values(metafile.outputs).flatMap((output) => Object.keys(output.inputs));
const names = new Set(inputs.map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]).filter(Boolean));
const texts = [];
for (const name of [...names].sort()) {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(await readFile(`${folder}/package.json`));
  const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
  const text = file ? await readFile(`${folder}/${file}`, "utf8") : "";
  texts.push(`${name} ${version} (${license})\n\n${text.trim()}\n`);
}
await writeFile(`${OUT}/licences.txt`, texts.join(`\n${"-".repeat(80)}\n\n`));
