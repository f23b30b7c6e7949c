"""The expected outcome of every input, written by hand: what a careful reader would want, not what the code did."""

from __future__ import annotations

from collections.abc import Mapping

from tests.corpus.outcomes import Failed, Heard, Letters, OneOf, Outcome, Picture, Refused, Scene

UNREADABLE = "media_unreadable"


def no_scene(found: str) -> Failed:
    return Failed(UNREADABLE, f"neither a GeoTIFF nor a JPEG 2000 file: {found}")


NO_PICTURE = Failed(UNREADABLE, "not an image in a supported format: PNG, JPEG, WebP, TIFF, BMP, GIF, AVIF or HEIC")
NO_HEADER = Failed(UNREADABLE, "its header cannot be read: it is damaged, incomplete or of a rare kind")
NO_DECODING = Failed(UNREADABLE, "The image cannot be decoded: the file is damaged or incomplete.")
DAMAGED = Failed(UNREADABLE, "The scene cannot be opened; it is damaged or incomplete")
TORN = Failed(UNREADABLE, "cannot be read; it is damaged or incomplete.")
MANY_PIXELS = Failed("media_too_large", "pixels; at most 20000000 are allowed.")
LARGE_FILE = Refused(422, "media_too_large", "thumbnail accepts 30000000 bytes; the file has 600")
LARGE_SCENE = Failed("media_too_large", "pixels; the model takes 20,000,000.")
LARGE_BLOCKS = Failed("media_too_large", "at most 268,435,456 are allowed. Write a tiled file")
NO_PLACE = Failed("invalid_input", "georeference (geotransform) is not usable: its numbers must be finite")
NO_RANGE = Failed(UNREADABLE, "32 bits per pixel, whose range is unknown: convert it to 8 or 16 bits.")
FOR_THE_MODEL = "which is not usable. Override it with `radiometry`"

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
SMALL, GREY, DARK = Scene(16, 16), Picture(((100, 100, 100),) * 4), Picture((BLACK,) * 4)
QUARTERS = Picture(((200, 0, 0), (0, 160, 0), (0, 0, 220), (240, 200, 0)))
GOLD = Picture(((240, 200, 0),) * 4)

#: As a scene for a model of one band, and as a picture: two readers of the same bytes.
ABSURD: Mapping[str, tuple[Outcome, Outcome]] = {
    "149-gib.tif": (LARGE_SCENE, MANY_PIXELS),
    "6-bands-of-149-gib.tif": (LARGE_SCENE, NO_PICTURE),
    "one-row-of-2-billion.tif": (LARGE_SCENE, MANY_PIXELS),
    "one-column-of-2-billion.tif": (LARGE_SCENE, MANY_PIXELS),
    "65000-bands-by-pixel.tif": (LARGE_BLOCKS, NO_HEADER),
    "65000-bands-by-band.tif": (SMALL, NO_DECODING),
    "blocks-of-400-mb.tif": (LARGE_SCENE, MANY_PIXELS),
    "block-larger-than-the-scene.tif": (LARGE_BLOCKS, MANY_PIXELS),
    "blocks-of-1-row-of-30000.tif": (Scene(30_000, 100), NO_DECODING),
    "tile-of-0.tif": (DAMAGED, GREY),
    "tile-of-4-billion.tif": (DAMAGED, MANY_PIXELS),
    "strip-of-0-rows.tif": (DAMAGED, NO_DECODING),
    "no-rows.tif": (DAMAGED, NO_HEADER),
    "no-columns.tif": (DAMAGED, NO_HEADER),
    "no-width.tif": (DAMAGED, NO_HEADER),
    "no-offsets.tif": (DAMAGED, NO_HEADER),
    "offsets-behind-the-end.tif": (TORN, NO_DECODING),
    # The header as pixels: nothing outside the file.
    "offsets-at-the-header.tif": (SMALL, OneOf(())),
    "a-count-of-4-billion.tif": (TORN, NO_HEADER),
    "samples-of-0-bits.tif": (DAMAGED, NO_HEADER),
    "samples-of-1-bit.tif": (SMALL, GREY),
    "samples-of-65535-bits.tif": (DAMAGED, NO_HEADER),
    "no-samples.tif": (DAMAGED, NO_HEADER),
    "65535-samples.tif": (TORN, NO_HEADER),
    "unknown-compression.tif": (DAMAGED, NO_HEADER),
    "jpeg-without-jpeg.tif": (TORN, NO_DECODING),
    "deflate-without-deflate.tif": (TORN, NO_DECODING),
    "lzma-without-lzma.tif": (TORN, NO_DECODING),
    "unknown-format.tif": (DAMAGED, NO_HEADER),
    "floats-of-8-bits.tif": (DAMAGED, NO_HEADER),
    "directory-that-follows-itself.tif": (DAMAGED, NO_HEADER),
    "directory-of-nothing.tif": (DAMAGED, NO_HEADER),
    "directory-behind-the-end.tif": (DAMAGED, NO_HEADER),
    "eight-bytes.tif": (DAMAGED, NO_HEADER),
    "four-bytes.tif": (DAMAGED, NO_HEADER),
    "one-byte.tif": (no_scene("it holds text"), NO_PICTURE),
    "bigtiff-of-nothing.tif": (DAMAGED, NO_PICTURE),
    "transform-nan.tif": (NO_PLACE, GREY),
    "transform-inf.tif": (NO_PLACE, GREY),
    "transform-zero.tif": (NO_PLACE, GREY),
    "transform-flat.tif": (NO_PLACE, GREY),
    "transform-huge.tif": (NO_PLACE, GREY),
    "transform-tiny.tif": (NO_PLACE, GREY),
    "pixel-size-nan.tif": (NO_PLACE, GREY),
    "nodata-of-words.tif": (SMALL, GREY),
    "nodata-out-of-range.tif": (SMALL, GREY),
    "metadata-that-is-no-xml.tif": (SMALL, GREY),
    "metadata-of-entities.tif": (SMALL, GREY),
    "metadata-10000-deep.tif": (SMALL, GREY),
    "metadata-of-60-mb.tif": (SMALL, LARGE_FILE),
    "10000-directories.tif": (SMALL, GREY),
    "metadata-of-60-mb.jp2": (Scene(96, 96), LARGE_FILE),
    "scale-nan.tif": (Failed("invalid_input", FOR_THE_MODEL), GREY),
    "scale-0.tif": (Failed("invalid_input", FOR_THE_MODEL), GREY),
    "complex-numbers.tif": (Failed("invalid_input", "data type is complex64; one real type is needed"), NO_HEADER),
    "64-bit-integers.tif": (
        Failed("invalid_input", "The radiometry of the scene's int64 numbers is unknown"),
        NO_HEADER,
    ),
    "bands-of-two-types.tif": (DAMAGED, NO_HEADER),
    "all-nan.tif": (Scene(16, 16, 0), NO_RANGE),
    "all-infinite.tif": (Scene(16, 16, 0), NO_RANGE),
    "all-1e38.tif": (Failed("invalid_input", "which looks like undeclared nodata"), NO_RANGE),
    "band-names-of-control-characters.tif": (SMALL, GREY),
    "100-mp-in-150-kb.tif": (LARGE_SCENE, MANY_PIXELS),
    "9-mp-in-15-kb.tif": (Scene(3000, 3000), DARK),
    "palette-of-bytes.tif": (SMALL, DARK),
}

#: For a job of three seconds.
SLOW = Failed("execution_timeout", "The job ran longer than its execution timeout.")

#: For the shipped model, which needs six bands.
SIX_BANDS: Mapping[str, Outcome] = {
    "6-bands-of-149-gib.tif": Failed("media_too_large", "160,000,000,000 pixels; the model takes 500,000,000."),
    "65000-bands-by-band.tif": Failed("missing_bands", "and 64980 more. No band matches the name of blue, green"),
    "band-names-of-control-characters.tif": Failed("missing_bands", "but the scene has 1: 1 "),
    "all-nan.tif": Failed("missing_bands", "the scene has 1"),
    "transform-nan.tif": NO_PLACE,
    "deflate-cut-at-50%": Failed("missing_bands", "the scene has 1"),
    "four-bytes.tif": DAMAGED,
}

#: Scenes that were cut off are never half a result; of turned bits a scene may come.
CUT_SCENE: Outcome = Failed(UNREADABLE, "it is damaged or incomplete")
FLIPPED_SCENE: Outcome = OneOf((UNREADABLE, "media_too_large", "invalid_input", "missing_bands"))

_XML, _TEXT = no_scene("it holds XML or HTML"), no_scene("it holds text")
_VRT = no_scene("it is a virtual raster (VRT), which only names other files. Convert it: `gdal_translate scene.vrt")
_ZIP = Failed(UNREADABLE, "The zip archive holds neither a Sentinel-2 product in SAFE nor a Zarr store.")
_GZIP = no_scene("it is a gzip file. Convert it: `gdal_translate /vsigzip/scene.tif.gz scene.tif`")
DISGUISES: Mapping[str, Outcome] = {
    "vrt.tif": _VRT,
    "vrt-of-an-address.tif": _VRT,
    "vrt-relative.tif": _VRT,
    "vrt-with-bom.tif": _VRT,
    "vrt-behind-spaces.tif": _VRT,
    "vrt-with-python.tif": _VRT,
    "vrt-in-utf-16.tif": no_scene("it begins with the bytes ff fe 3c 00"),
    "gti.tif": _XML,
    "wms.tif": _XML,
    "wmts.tif": _XML,
    "wcs.tif": _XML,
    "entities.tif": _XML,
    "gdalg.tif": _TEXT,
    "stac.tif": _TEXT,
    "ogc-api.tif": _TEXT,
    "path.tif": _TEXT,
    "connection.tif": _TEXT,
    "curl.tif": _TEXT,
    "zip.tif": _ZIP,
    "zip-that-climbs.tif": Failed("invalid_input", "has a file with a place outside of itself, which is not read."),
    "zip-with-a-link.tif": Failed("invalid_input", "has a link, 'a.SAFE/MTD_MSIL2A.xml', which is not read."),
    "zip-bomb.tif": _ZIP,
    "gzip.tif": _GZIP,
    "gzip-bomb.tif": _GZIP,
    "tar.tif": no_scene("it is a tar archive. Convert it: `gdal_translate /vsitar/scene.tar/INNER.tif scene.tif`"),
    "hdf5.tif": DAMAGED,
    "hdf5-link.tif": Failed("invalid_input", "refers to other files, which are not read: the link 'far'."),
    "hdf5-data-elsewhere.tif": Failed("invalid_input", "refers to other files, which are not read: the dataset 'far'."),
    "netcdf.tif": Failed(UNREADABLE, "The NetCDF file is no scene: it has no variables of numbers"),
    "zarr-with-code.tif": Failed(UNREADABLE, "blue is stored with the codec 'pickle', which is not read"),
    "fits.tif": no_scene("it is a FITS file. Convert it: `gdal_translate scene.fits scene.tif`"),
    "sqlite.tif": no_scene("it is an SQLite file, such as a GeoPackage or MBTiles. Convert it: `gdal_translate"),
    "aux.xml.tif": _XML,
}
#: Scenes that name another file beside are themselves, and nothing else is touched.
NAMING: Outcome = Scene(64, 64)

_NO_SIDECAR = Failed(UNREADABLE, "The sidecar has an unknown format")
_NO_ITEM = Failed(UNREADABLE, "The document is not a STAC item, i.e. a GeoJSON feature with `properties` and `assets`.")
_NO_JSON = Failed(UNREADABLE, "The STAC item is not JSON")


def _both(code: str, sentence: str) -> tuple[Outcome, Outcome]:
    return Failed(code, f"The sidecar {sentence}"), Failed(code, f"The STAC item {sentence}")


#: Given beside a good scene: as its product's metadata, and as its STAC item.
DOCUMENTS: Mapping[str, tuple[Outcome, Outcome]] = {
    "laughs.xml": (Failed(UNREADABLE, "has a document type declaration, which is not allowed"), _NO_JSON),
    "laughs-in-utf-16.xml": _both(UNREADABLE, "is not UTF-8 text"),
    "deep.xml": (_NO_SIDECAR, _NO_JSON),
    "wide.xml": (_NO_SIDECAR, _NO_JSON),
    "half.xml": (Failed(UNREADABLE, "The sidecar is not XML"), _NO_JSON),
    "deep.json": _both(UNREADABLE, "is nested too deeply."),
    "17-mb.json": _both("media_too_large", "has 17,825,794 bytes; at most 16,777,216 are read."),
    "nan.json": (_NO_SIDECAR, _NO_ITEM),
    "huge-number.json": _both(UNREADABLE, "holds a number that is too long."),
    "nothing.json": (_NO_SIDECAR, _NO_ITEM),
    "array.json": (_NO_SIDECAR, Failed(UNREADABLE, "The STAC item is not a JSON object.")),
    "nul.json": (_NO_SIDECAR, _NO_JSON),
    "latin-1.json": _both(UNREADABLE, "is not UTF-8 text"),
    "sun-of-surrogates.json": (Failed(UNREADABLE, "is '\\ud800', not a number"), _NO_ITEM),
    "sun-of-infinity.json": (Failed(UNREADABLE, "The sidecar's SUN_ELEVATION is inf"), _NO_ITEM),
    "band-of-surrogates.json": (_NO_SIDECAR, Scene(64, 64)),
    "band-of-nul.json": (_NO_SIDECAR, Scene(64, 64)),
    "band-of-100-kb.json": (_NO_SIDECAR, Scene(64, 64)),
}

#: Pictures that are odd and all look the same.
LIKE_QUARTERS: Outcome = QUARTERS
ODD: Mapping[str, Outcome] = {
    "16-bits.png": Picture((BLACK, (85, 85, 85), (170, 170, 170), WHITE)),
    "16-bits.tiff": Picture((BLACK, (85, 85, 85), (170, 170, 170), WHITE)),
    "transparent-rgba.png": Picture((WHITE, WHITE, WHITE, BLACK)),
    "transparent-la.png": Picture((WHITE, WHITE, WHITE, BLACK)),
    "transparent-palette.png": Picture((WHITE, WHITE, WHITE, BLACK)),
    "one-bit.png": Picture((BLACK, BLACK, WHITE, WHITE)),
    "one-pixel.png": GOLD,
    "one-row.png": GOLD,
    "lab.tiff": Picture((WHITE,) * 4),
}
BOMBS: Mapping[str, Outcome] = {
    "10-gigapixels.png": MANY_PIXELS,
    "4-billion-wide.png": MANY_PIXELS,
    "67-mp-of-zeros.png": MANY_PIXELS,
    "more-pixels-than-declared.png": DARK,
    "text-of-64-mb.png": NO_HEADER,
    "profile-of-64-mb.png": NO_HEADER,
    "frame-beyond-the-picture.png": NO_HEADER,
    "4-gigapixels.tiff": MANY_PIXELS,
    "4-gigapixels.gif": NO_HEADER,
    "frame-of-4-gigapixels.gif": Failed("media_too_large", "The image declares more pixels than are allowed: 20000000"),
    "268-megapixels.webp": Failed("media_too_large", "The image declares more pixels than are allowed: 20000000"),
    "4-gigapixels.bmp": MANY_PIXELS,
    "upside-down.bmp": MANY_PIXELS,
    "4-gigapixels.jpeg": MANY_PIXELS,
    "60000-scans.jpeg": Failed("media_too_large", "The image has more than 100 scans."),
    "4400-pixels-that-are-16.jpeg": NO_DECODING,
    "tile-of-4-billion.tiff": MANY_PIXELS,
}
FOREIGN: Mapping[str, Outcome] = {
    "postscript.eps": NO_PICTURE,
    "postscript.png": NO_PICTURE,
    "binary-postscript.png": NO_PICTURE,
    "drawing.svg": NO_PICTURE,
    "document.pdf": NO_PICTURE,
    "icon.ico": NO_PICTURE,
    "jpeg-2000.jp2": NO_PICTURE,
    "avif.avif": QUARTERS,
    "ppm.png": NO_PICTURE,
    "targa.png": NO_PICTURE,
    "photoshop.psd": NO_PICTURE,
    "windows.wmf": NO_PICTURE,
    "fli.fli": NO_PICTURE,
    "program.png": NO_PICTURE,
    "script.png": NO_PICTURE,
    "pickle.png": NO_PICTURE,
    "html.png": NO_PICTURE,
    "one-byte.png": NO_PICTURE,
    "signature.png": NO_HEADER,
    "signature.jpeg": NO_HEADER,
    "signature.gif": NO_HEADER,
    "signature.webp": NO_HEADER,
    "signature.bmp": NO_HEADER,
    "no-palette.png": DARK,
    "no-pixels.png": NO_DECODING,
    "zero-wide.png": NO_HEADER,
    "wrong-checksum.png": NO_HEADER,
    "chunk-of-4-gb.png": NO_DECODING,
    "32-bits.tiff": NO_RANGE,
    "32-bit-integers.tiff": NO_RANGE,
    "orientation-of-words.tiff": GREY,
}
CUT_PICTURE: Outcome = OneOf((UNREADABLE,))
FLIPPED_PICTURE: Outcome = OneOf((UNREADABLE, "media_too_large"))

#: Every text, as a file and within a request: a token for each byte, two around them, and one for each special token
#: that was typed, because it is broken up.
READ: Mapping[str, Outcome] = {
    "plain.txt": Letters(10),
    "bom.txt": Letters(10),
    "umlauts.txt": Letters(22),
    "combining.txt": Letters(2003),
    "right-to-left.txt": Letters(15),
    "control-characters.txt": Letters(34),
    "noncharacters.txt": Letters(12),
    "one-line-of-100000.txt": Letters(4096, truncated=True),
    "deep.json": Letters(4096, truncated=True),
    "nan.json": Letters(27),
    "escaped-surrogates.json": Letters(38),
    "duplicate-keys.json": Letters(18),
    "huge-number.json": Letters(4096, truncated=True),
    "[CLS].txt": Letters(9 + 1 + 2),
    "[SEP].txt": Letters(9 + 1 + 2),
    "<image>.txt": Letters(11 + 1 + 2),
    "</s>.txt": Letters(8 + 1 + 2),
    "<|im_start|>.txt": Letters(16 + 1 + 2),
    "<|im_end|>.txt": Letters(14 + 1 + 2),
    "all-special.txt": Letters(129 + 18 + 2),
    "special-in-special.txt": Letters(32 + 3 + 2),
    "special-in-capitals.txt": Letters(18 + 2),
    "prompt-injection.txt": Letters(44 + 3 + 2),
}
_LATIN = Failed(UNREADABLE, "The file is not UTF-8 text")
NO_TEXT: Mapping[str, Outcome] = {
    "nul.txt": Failed(UNREADABLE, "The file is not text: it holds a NUL at character 1."),
    "latin-1.txt": _LATIN,
    "utf-16.txt": _LATIN,
    "utf-16-alone.txt": _LATIN,
    "utf-32.txt": _LATIN,
    "surrogates.txt": _LATIN,
    "overlong.txt": _LATIN,
    "beyond-unicode.txt": _LATIN,
    "cut-off.txt": _LATIN,
    "2-mb-and-a-byte.txt": Refused(422, "media_too_large", "letters accepts 2000000 bytes; the file has 2000001"),
    "gzip.txt": _LATIN,
    "zip.txt": Failed(UNREADABLE, "The file is not"),
}

#: Outcomes of sound files, real ones too: as a scene, as an image, as a text.
SOUNDS: tuple[Outcome, Outcome, Outcome] = (
    no_scene("it begins with the bytes"), NO_PICTURE, Failed(UNREADABLE, "The file is not")
)  # fmt: skip
NO_SAMPLES = Failed(UNREADABLE, "The recording is empty: it holds no samples.")
NO_RECORDING = Failed(UNREADABLE, "The recording cannot be decoded: it is damaged, incomplete or of a rare kind.")
RARE_SOUND = Failed(UNREADABLE, "The recording's codec is not supported.")
#: The same to a model that hears.
HEARD: Mapping[str, Outcome] = {
    "sound.wav": Heard(0.01),
    "no-samples.wav": NO_SAMPLES,
    "header-only.wav": NO_SAMPLES,
    "half-a-header.wav": NO_RECORDING,
    "promises-4-gb.wav": Heard(0.01),
    "no-channels.wav": Failed(UNREADABLE, "The recording's header declares 0 channels at 16000 Hz"),
    "65535-channels.wav": Failed(UNREADABLE, "channels at 16000 Hz."),
    "rate-0.wav": NO_RECORDING,
    "rate-4-billion.wav": NO_RECORDING,
    "no-bits.wav": RARE_SOUND,
    "65535-bits.wav": RARE_SOUND,
    "unknown-kind.wav": RARE_SOUND,
    "riff-of-nothing.wav": NO_RECORDING,
    "rf64.wav": NO_RECORDING,
    "sound.flac": NO_RECORDING,
    "sound.mp3": NO_RECORDING,
    "sound.ogg": NO_RECORDING,
}
SHARED_HEARD: Mapping[str, Outcome] = {
    "absurd_header.wav": Failed(UNREADABLE, "The recording's header declares 1 channels at 1092676 Hz"),
    "empty.wav": NO_SAMPLES,
    "go_forward.wav": Heard(2.786),
    "jfk_44k_stereo_24bit.flac": Heard(11),
    "librivox_0930.wav": Heard(3.29),
}
#: Nothing at all cannot even be uploaded.
NOTHING: Outcome = Refused(422, "invalid_request", "must be greater than 0")

#: The shared photographs and odd scenes as pictures. Colours are means that GDAL gives.
SHARED_PICTURES: Mapping[str, Outcome] = {
    "chelsea.png": Picture(((142, 106, 79), (141, 108, 87), (156, 114, 85), (152, 118, 96))),
    "coffee.png": Picture(((167, 93, 54), (201, 128, 82), (130, 62, 39), (137, 60, 31))),
    "gray16.tif": Picture(((2, 2, 2),) * 4),  # numbers about 400 of 65535
    "page.png": Picture(((143, 143, 143), (207, 207, 207), (127, 127, 127), (209, 209, 209))),
    "rocket.jpg": Picture(((39, 54, 85), (29, 42, 67), (79, 85, 101), (62, 64, 76))),
    "transparent_rgba.png": Picture(((179, 164, 208), (186, 198, 172), (237, 224, 218), (238, 223, 217))),
    "truncated.png": NO_DECODING,
    "all_nodata_4band.tif": DARK,
    "big_120MP.tif": MANY_PIXELS,
    "big_palette_62MP.tif": MANY_PIXELS,
    "complex_int16_gcps.tif": NO_HEADER,
    "corrupt_tiles.tif": NO_DECODING,
    "extreme_nodata.tif": NO_RANGE,
    "gcps_only.tif": DARK,
    "no_crs_nan.tif": NO_RANGE,
    "palette.tif": Picture(((32, 36, 29), (46, 48, 45), (62, 76, 60), (16, 18, 16))),
    "rgba_jpeg_alpha.tif": Picture((WHITE, WHITE, (247, 248, 246), WHITE)),  # nearly all of it is transparent
    "rgba_uint16.tif": NO_HEADER,
    "rotated_nocrs.tif": Picture(((32, 32, 32), (37, 37, 37), (107, 107, 107), (112, 112, 112))),
    "scale_offset_int16.tif": NO_HEADER,
    "south_up.tif": NO_RANGE,
}
