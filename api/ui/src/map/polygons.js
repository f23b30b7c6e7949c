// Polygons of a result, as outlines over the map.
import GeoJSON from "ol/format/GeoJSON.js";
import VectorLayer from "ol/layer/Vector.js";
import VectorSource from "ol/source/Vector.js";
import Stroke from "ol/style/Stroke.js";
import Style from "ol/style/Style.js";

const MOST_BYTES = 30_000_000;

/** Return a hidden layer that reads its file when it is shown first, and why not in `problem`. */
export function polygonLayer(file, size, place) {
  if (!place.lonLat) return { layer: null, problem: place.problem };
  if (size > MOST_BYTES) return { layer: null, problem: "The polygons are too large for this page. Download the artifact." };
  const source = new VectorSource({
    loader: async (extent, resolution, projection, success, failure) => {
      try {
        const response = await fetch(file.url);
        if (!response.ok) throw new Error(String(response.status));
        const features = new GeoJSON().readFeatures(await response.json(), { dataProjection: "EPSG:4326", featureProjection: place.projection });
        source.addFeatures(features);
        success(features);
      } catch {
        failure();
      }
    },
  });
  const style = [new Style({ stroke: new Stroke({ color: "rgba(0,0,0,0.75)", width: 2.5 }) }), new Style({ stroke: new Stroke({ color: "#ffe14d", width: 1.2 }) })];
  return { layer: new VectorLayer({ source, style, visible: false }), problem: null };
}
