// What a raster holds: its bands, their names and scale, and the range of its values, from its smallest overview.
import { fromUrl } from "geotiff";

/** Pixels of the sample's longer side. */
const SAMPLE = 512;

/** Read a GeoTIFF's description by range requests: `{bands: [{name, scale, low, high}], nodata}`. */
export async function inspect(url, signal) {
  const tiff = await fromUrl(url, {}, signal);
  const full = await tiff.getImage(0);
  const count = await tiff.getImageCount();
  const smallest = await last(tiff, count);
  const about = await Promise.all(Array.from({ length: full.getSamplesPerPixel() }, async (_, index) => (await full.getGDALMetadata(index)) ?? {}));
  const nodata = full.getGDALNoData();
  const values = await smallest.readRasters({ window: middle(smallest), signal });
  const bands = about.map((metadata, index) => {
    const [low, high] = range(values[index], nodata);
    return { name: metadata.DESCRIPTION ?? `band ${index + 1}`, scale: Number(metadata.SCALE ?? 1), unit: metadata.UNITTYPE ?? "", low, high };
  });
  return { bands, nodata };
}

/** Return the smallest overview; masks are no overviews. */
async function last(tiff, count) {
  for (let index = count - 1; index > 0; index -= 1) {
    const image = await tiff.getImage(index);
    const kind = image.fileDirectory.getValue("NewSubfileType") ?? 0;
    if ((kind & 4) === 0) return image;
  }
  return tiff.getImage(0);
}

function middle(image) {
  const cut = (size) => { const from = Math.max(0, Math.floor((size - SAMPLE) / 2)); return [from, Math.min(size, from + SAMPLE)]; };
  const [left, right] = cut(image.getWidth());
  const [top, bottom] = cut(image.getHeight());
  return [left, top, right, bottom];
}

/** Return the 2nd and 98th percentile of the valid values. */
function range(values, nodata) {
  const valid = values.filter((value) => Number.isFinite(value) && value !== nodata).sort();
  if (!valid.length) return [0, 1];
  const at = (share) => valid[Math.round((valid.length - 1) * share)];
  const [low, high] = [at(0.02), at(0.98)];
  return high > low ? [low, high] : [low, low + 1];
}
