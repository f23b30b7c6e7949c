// The addresses of the map tiles of a job's rasters, for other maps and GIS.
import { copyButton, h, table } from "../dom.js";
import { time } from "../words.js";

/** Return the addresses; null where the service draws no tiles. */
export function tiles(files) {
  const drawn = files.filter(({ tilejson }) => tilejson);
  if (!drawn.length) return null;
  const row = ({ name, kind, pointer, tilejson, xyz }) => [
    pointer ? `${name} (input ${pointer.slice(1)})` : name,
    h("a", { href: tilejson, target: "_blank", rel: "noreferrer" }, "TileJSON"),
    h("span", {}, copyButton(`XYZ address of ${kind} ${name}`, xyz), " ", h("code", { title: xyz }, "{z}/{x}/{y}.png")),
  ];
  return h("details", {}, h("summary", {}, "Map tiles for other maps"),
    h("p", { class: "quiet" }, `For Leaflet, QGIS and GDAL. Whoever has an address sees its raster, until ${time(drawn[0].expires)}.`),
    table("Map tiles", ["Raster", "TileJSON", "XYZ"], drawn.map(row)));
}
