// OpenLayers' layers for the input, classes and quantities. All are drawn on the scene's own grid.
import WebGLTileLayer from "ol/layer/WebGLTile.js";
import GeoTIFF from "ol/source/GeoTIFF.js";

/** Colours from low to high with even lightness (viridis), as in the previews. */
export const RAMP = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
export const RESULT_CLASS = "ol-layer result-layer";

/** Exponent of the input's brightness: clouds would leave the ground black without it. */
const GAMMA = 0.55;

// Pixels are not interpolated: each shows its own value, and nodata has sharp edges.
function source(url, projection, nodata = null) {
  return new GeoTIFF({ sources: [nodata === null ? { url } : { url, nodata }], projection, normalize: false, interpolate: false, transition: 0 });
}

/** Return a layer of the input in the bands `[red, green, blue]`, from 0. */
export function inputLayer(url, projection, { bands, nodata }, [red, green, blue]) {
  const stretch = (index) => ["^", ["clamp", ["/", ["-", ["band", index + 1], bands[index].low], bands[index].high - bands[index].low], 0, 1], GAMMA];
  const alpha = nodata === null ? 1 : ["case", [">", ["band", bands.length + 1], 0], 1, 0];
  const color = ["array", stretch(red), stretch(green), stretch(blue), alpha];
  return new WebGLTileLayer({ source: source(url, projection, nodata), style: { color } });
}

/** Return a layer of class ids; `hidden` classes are transparent. */
export function classLayer(url, projection, classes, hidden) {
  const layer = new WebGLTileLayer({ source: source(url, projection), style: classStyle(classes, hidden), className: RESULT_CLASS });
  return { layer, restyle: (others) => layer.setStyle(classStyle(classes, others)) };
}

function classStyle(classes, hidden) {
  const cases = classes.filter(({ id }) => !hidden.has(id)).flatMap(({ id, colour }) => [["==", ["band", 1], id], colour]);
  return { color: ["case", ["==", ["band", 2], 0], "rgba(0,0,0,0)", ...cases, "rgba(0,0,0,0)"] };
}

/** Return a layer of one band of quantities. */
export function valueLayer(url, projection, { bands, nodata }, index) {
  const { low, high } = bands[index];
  const stops = RAMP.flatMap((colour, at) => [low + ((high - low) * at) / (RAMP.length - 1), colour]);
  const ramp = ["interpolate", ["linear"], ["band", index + 1], ...stops];
  const color = nodata === null ? ramp : ["case", ["==", ["band", bands.length + 1], 0], "rgba(0,0,0,0)", ramp];
  return new WebGLTileLayer({ source: source(url, projection), style: { color }, className: RESULT_CLASS });
}
