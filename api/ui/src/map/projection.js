// The scene's own coordinate reference system, from the proj4 text in the job's statistics.
import { get as known, Projection, transform } from "ol/proj.js";
import { register } from "ol/proj/proj4.js";
import proj4 from "proj4";

/** Return `{projection, problem, lonLat}` for the CRS in the statistics. A CRS without a text is never guessed. */
export function projectionOf(crs) {
  if (crs?.proj4) {
    const code = `scene:${crs.name}:${crs.proj4}`;
    try {
      proj4.defs(code, crs.proj4);
      register(proj4);
      const projection = known(code);
      const lonLat = (coordinate) => transform(coordinate, projection, "EPSG:4326");
      if (lonLat([0, 0]).some((value) => value === undefined)) throw new Error("no transformation");
      return { projection, problem: null, lonLat };
    } catch {
      return plane(`This page cannot place the coordinate system ${crs.name}. The map is drawn on the scene's own grid, without longitude, latitude and polygons.`);
    }
  }
  return plane(crs ? `The coordinate system ${crs.name} has no proj4 text. The map is drawn on the scene's own grid, without longitude, latitude and polygons.` : "The scene has no coordinate system. The map is drawn on its pixel grid, without longitude, latitude and polygons.");
}

function plane(problem) {
  return { projection: new Projection({ code: "scene:grid", units: "m", global: false }), problem, lonLat: null };
}
