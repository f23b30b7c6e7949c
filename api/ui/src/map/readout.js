// The value under the pointer, or in the middle of the map when the keyboard moves it.
import { h, fill, swatch } from "../dom.js";
import { precise } from "../words.js";

/** Return the element; `current()` gives the shown layer with its raster and classes. */
export function readout(map, place, current) {
  const element = h("p", { class: "readout", role: "status" }, "Point at the map to read its values.");
  const show = (pixel) => {
    const coordinate = map.getCoordinateFromPixel(pixel);
    if (coordinate) fill(element, at(coordinate, place), " ", value(pixel, current()));
  };
  map.on("pointermove", (event) => { if (!event.dragging) show(event.pixel); });
  map.on("moveend", () => {
    const size = map.getSize();
    if (document.activeElement === map.getTargetElement() && size) show([size[0] / 2, size[1] / 2]);
  });
  return element;
}

function at(coordinate, place) {
  const grid = coordinate.map((each) => precise6(each)).join(", ");
  if (!place.lonLat) return `x, y ${grid}`;
  const [lon, lat] = place.lonLat(coordinate);
  return `${Math.abs(lat).toFixed(5)}° ${lat < 0 ? "S" : "N"}, ${Math.abs(lon).toFixed(5)}° ${lon < 0 ? "W" : "E"} (x, y ${grid})`;
}

const precise6 = (value) => (Math.abs(value) > 1000 ? value.toFixed(0) : value.toFixed(5));

function value(pixel, { layer, raster, classes, band }) {
  const data = layer?.getVisible() ? layer.getData(pixel) : null;
  if (!data) return "";
  const numbers = Array.from(data);
  if (raster.nodata !== null && numbers.at(-1) === 0 && numbers.length > raster.bands.length) return h("strong", {}, "no data");
  if (classes) {
    const found = classes.find(({ id }) => id === Math.round(numbers[0]));
    return found ? [swatch(found.colour), h("strong", {}, found.name)] : "";
  }
  const { name, scale, unit } = raster.bands[band];
  return h("strong", {}, `${name} ${precise(numbers[band] * scale)} ${unit}`);
}
