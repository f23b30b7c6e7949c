// The map of a result: the rasters of a job over its input, in the scene's own coordinate reference system.
import OlMap from "ol/Map.js";
import View from "ol/View.js";
import { defaults } from "ol/control/defaults.js";
import ScaleLine from "ol/control/ScaleLine.js";
import { fill, h } from "../dom.js";
import { isRaster } from "../results/result.js";
import { check, pick, slider } from "./controls.js";
import { classLayer, inputLayer, valueLayer } from "./layers.js";
import { classLegend, valueLegend } from "./legend.js";
import { polygonLayer } from "./polygons.js";
import { projectionOf } from "./projection.js";
import { inspect } from "./rasters.js";
import { readout } from "./readout.js";
import { season } from "./season.js";
import { tiles } from "./tiles.js";

export async function view(job, files, signal) {
  const stats = job.output?.json ?? {};
  const place = projectionOf(stats.scene?.crs ?? null);
  const rasters = await opened(files.filter(isRaster), signal);
  const input = await openedInput(files, stats, place, signal);
  const target = h("div", { class: "map", tabindex: "0", role: "application", "aria-label": "Map of the result. Arrow keys move it, plus and minus zoom." });
  const legend = h("div");
  const wrong = h("div", { class: "stack" });
  const map = new OlMap({ target, controls: defaults({ attribution: false, rotate: false }) });
  if (place.lonLat) map.addControl(new ScaleLine());
  const state = { layer: null, raster: null, classes: null, band: 0, opacity: 0.8, swipe: 0 };
  const problem = (text) => wrong.append(h("p", { class: "problem", role: "alert" }, text));
  if (place.problem) problem(place.problem);
  if (input.problem) problem(input.problem);
  if (input.layer) map.addLayer(input.layer);
  const polygons = polygonsOf(files, job, place);
  const choices = rasters.flatMap(({ file, raster, error }) => error ? [] : choicesOf(file, raster, stats));
  for (const { file, error } of rasters) if (error) problem(`${file.name} cannot be read: ${error.message}`);

  function showRaster({ file, raster, classes, band }) {
    if (state.layer) map.removeLayer(state.layer);
    const made = classes ? classLayer(file.url, place.projection, classes, new Set()) : { layer: valueLayer(file.url, place.projection, raster, band) };
    Object.assign(state, { layer: made.layer, raster, classes, band });
    made.layer.setOpacity(state.opacity);
    made.layer.on("sourceready", apply);
    map.getLayers().insertAt(input.layer ? 1 : 0, made.layer);
    fill(legend, classes ? classLegend(classes, made.restyle) : valueLegend(raster.bands[band]));
    apply();
  }
  function apply() {
    state.layer?.setOpacity(state.opacity);
    const element = target.querySelector(".result-layer");
    if (element) element.style.clipPath = `inset(0 0 0 ${state.swipe}%)`;
  }
  map.on("postrender", apply);
  signal.addEventListener("abort", () => map.setTarget(null));

  if (choices.length) {
    showRaster(choices[0]);
    const { extent } = await state.layer.getSource().getView();
    map.setView(new View({ projection: place.projection, extent, constrainOnlyCenter: true, showFullExtent: true }));
    whenSized(target, () => { map.updateSize(); map.getView().fit(extent, { padding: [12, 12, 12, 12] }); }, () => map.updateSize());
  }
  if (polygons.layer) map.addLayer(polygons.layer);
  const controls = h("div", { class: "map-controls" },
    choices.length > 1 && pick("Show", choices.map(({ label }) => label), (index) => showRaster(choices[index])),
    slider("Opacity", 80, (value) => { state.opacity = value / 100; apply(); }),
    input.layer && slider("Swipe", 0, (value) => { state.swipe = value; apply(); }),
    input.layer && check("Input", true, (on) => input.layer.setVisible(on)),
    polygons.layer && check("Polygons", false, (on) => polygons.layer.setVisible(on)),
    polygons.problem && polygons.problem !== place.problem && h("p", { class: "quiet" }, polygons.problem));
  return h("div", { class: "map-view" }, wrong, h("div", { class: "map-grid" }, h("div", {}, target, readout(map, place, () => state)), h("div", { class: "map-side" }, controls, legend)),
    season(stats),
    tiles(files),
    stats.notes?.length > 0 && h("details", {}, h("summary", {}, `${stats.notes.length} notes about the result`), h("ul", {}, stats.notes.map((note) => h("li", {}, note)))));
}

/** Call `first` when the element has a size, and `then` whenever that changes. */
function whenSized(element, first, then) {
  let sized = false;
  new ResizeObserver(() => {
    if (!element.clientWidth) return;
    sized ? then() : first();
    sized = true;
  }).observe(element);
}

async function opened(files, signal) {
  return Promise.all(files.map(async (file) => {
    try {
      return { file, raster: await inspect(file.url, signal) };
    } catch (error) {
      return { file, error };
    }
  }));
}

/** Return the input as a layer in natural colours where its bands are known, else its first band in grey. */
async function openedInput(files, stats, place, signal) {
  const scenes = files.filter((file) => file.kind === "input" && /\.tiff?$/i.test(file.name));
  const others = files.some((file) => file.kind === "input" && /\.(jp2|j2k|nc4?|h5|hdf5|zip)$/i.test(file.name));
  if (scenes.length !== 1) return { layer: null, problem: others ? "The input is in a format that browsers cannot draw. The map shows the result alone." : null };
  try {
    const found = await inspect(scenes[0].url, signal);
    const raster = { ...found, nodata: found.nodata ?? stats.radiometry?.nodata ?? null };
    const named = (name) => { const at = stats.bands?.find((band) => band.name === name)?.index; return at && at <= raster.bands.length ? at - 1 : 0; };
    return { layer: inputLayer(scenes[0].url, place.projection, raster, ["red", "green", "blue"].map(named)), problem: null };
  } catch (error) {
    return { layer: null, problem: `The input cannot be drawn: ${error.message}. The map shows the result alone.` };
  }
}

function choicesOf(file, raster, stats) {
  const name = file.name.replace(/\.tiff?$/i, "");
  const classes = classesOf(name, stats);
  if (classes) return [{ label: name, file, raster, classes, band: 0 }];
  return raster.bands.map((band, index) => ({ label: raster.bands.length > 1 ? `${name}: ${band.name}` : name, file, raster, classes: null, band: index }));
}

/** The classes of a raster: those of the scene, of a change, of a date of a series, or of its extent; undefined for quantities. */
function classesOf(name, stats) {
  if (name === "classes") return stats.classes;
  if (name === "change") return stats.change?.classes;
  if (name === "extent") return stats.series?.extent.classes;
  return stats.dates?.find(({ prefix }) => `${prefix}classes` === name)?.classes;
}

function polygonsOf(files, job, place) {
  const file = files.find(({ kind, name }) => kind === "artifact" && name === "polygons.geojson");
  const size = job.artifacts.find(({ name }) => name === "polygons.geojson")?.size_bytes ?? 0;
  return file ? polygonLayer(file, size, place) : { layer: null, problem: null };
}
