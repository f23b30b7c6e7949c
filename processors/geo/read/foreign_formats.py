"""Formats of rasters that are not read, by their first bytes, each with the command that converts it. Pure.

Sources: the signatures of GDAL's drivers (`Identify`), and the prefixes of their subdatasets
(https://gdal.org/drivers/raster/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Bytes of a file's beginning that are enough to know its format: a tar archive says `ustar` at byte 257.
HEAD_BYTES: Final = 1024
#: Byte order mark and white space before XML.
_BEFORE_XML: Final = b"\xef\xbb\xbf \t\r\n"
_VARIABLES: Final = "`gdalinfo {file}` lists its variables"


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A format with its name and what to do about it; `{file}` stands for the file's name."""

    #: Noun phrase with an article.
    name: str
    #: Suffix of the format's files, for those without one that says more.
    suffix: str
    #: Argument of gdal_translate.
    source: str = "{file}"
    #: Clause in brackets after the command.
    hint: str = ""

    def advice(self, suffix: str) -> str:
        """Return the sentence with the command that makes a GeoTIFF; `suffix` is that of the file, which may be ''."""
        file = "scene" + (suffix if suffix not in ("", ".tif", ".tiff") else self.suffix)
        hint = f" ({self.hint})" if self.hint else ""
        return f"Convert it: `gdal_translate {self.source} scene.tif`{hint}.".replace("{file}", file)


_VRT = ForeignFormat("a virtual raster (VRT), which only names other files", ".vrt")
_NETCDF = ForeignFormat("a NetCDF file", ".nc", "NETCDF:{file}:VARIABLE", _VARIABLES)
_HDF5 = ForeignFormat("an HDF5 file", ".h5", "HDF5:{file}://GROUP/VARIABLE", _VARIABLES)
_HDF4 = ForeignFormat(
    "an HDF4 file", ".hdf", 'HDF4_EOS:EOS_GRID:"{file}":GRID:BAND', "`gdalinfo {file}` lists its bands"
)
_GEOPACKAGE = ForeignFormat("a GeoPackage", ".gpkg", "-oo TABLE=LAYER {file}", "`gdalinfo {file}` lists its layers")
_ZIP = ForeignFormat("a zip archive", ".zip", "/vsizip/{file}/INNER.tif", "`unzip -l {file}` lists its files")
_TAR = ForeignFormat("a tar archive", ".tar", "/vsitar/{file}/INNER.tif", "`tar -tf {file}` lists its files")
_ZARR = ForeignFormat(
    "the metadata of a Zarr store", ".zarr", 'ZARR:"scene.zarr":/VARIABLE', "`gdalinfo scene.zarr` lists its variables"
)
_MBTILES = ForeignFormat("an MBTiles file", ".mbtiles")
_SQLITE = ForeignFormat(
    "an SQLite file, such as a GeoPackage or MBTiles", ".gpkg", _GEOPACKAGE.source, _GEOPACKAGE.hint
)
_JPEG_XL = ForeignFormat("a JPEG XL file", ".jxl")
_DIMAP = ForeignFormat("the metadata of a DIMAP product (SPOT, Pléiades), which names other files", ".XML")
_SURFER = ForeignFormat("a Surfer grid", ".grd")

_RAW = ForeignFormat(
    "numbers without a header, such as the pixels of ENVI or ESRI", ".img", hint="with its .hdr file beside it"
)
_RAW_SUFFIXES: Final = (".img", ".dat", ".raw", ".bsq", ".bil", ".bip", ".bin", ".flt")

#: First bytes -> format.
_MAGIC: Final[tuple[tuple[bytes, ForeignFormat], ...]] = (
    (b"CDF\x01", _NETCDF),
    (b"CDF\x02", _NETCDF),
    (b"CDF\x05", _NETCDF),
    (b"\x89HDF\r\n\x1a\n", _HDF5),
    (b"\x0e\x03\x13\x01", _HDF4),
    (b"PK\x03\x04", _ZIP),
    (b"\x1f\x8b", ForeignFormat("a gzip file", ".tif.gz", "/vsigzip/{file}")),
    (b"\xff\x0a", _JPEG_XL),
    (b"\0\0\0\x0cJXL ", _JPEG_XL),
    (b"ENVI", ForeignFormat("an ENVI header", ".hdr", "scene.img", "the file of pixels, with its header beside it")),
    (b"EHFA_HEADER_TAG", ForeignFormat("an Erdas Imagine file", ".img")),
    (b"\x89PNG\r\n\x1a\n", ForeignFormat("a PNG picture", ".png")),
    (b"\xff\xd8\xff", ForeignFormat("a JPEG picture", ".jpg")),
    (b"GRIB", ForeignFormat("a GRIB file", ".grib2")),
    (b"NITF", ForeignFormat("a NITF file", ".ntf")),
    (b"NSIF", ForeignFormat("a NITF file", ".ntf")),
    (b"SIMPLE  =", ForeignFormat("a FITS file", ".fits")),
    (b"PCIDSK", ForeignFormat("a PCIDSK file", ".pix")),
    (b"msid", ForeignFormat("a MrSID file", ".sid", hint="GDAL needs its MrSID plugin")),
    (b"DSAA", _SURFER),
    (b"DSBB", _SURFER),
    (b"DSRB", _SURFER),
    (b"ncols", ForeignFormat("an ASCII grid", ".asc")),
    (b"%PDF", ForeignFormat("a PDF file", ".pdf")),
)  # fmt: skip
#: Root elements of XML -> format.
_XML: Final = ((b"<VRTDataset", _VRT), (b"<Dimap_Document", _DIMAP))
#: Application ids of SQLite files at byte 68 -> format; `GP10` and `GP11` are GeoPackage 1.0 and 1.1.
_SQLITES: Final = {b"GPKG": _GEOPACKAGE, b"GP10": _GEOPACKAGE, b"GP11": _GEOPACKAGE, b"MPBX": _MBTILES}


def foreign_format(head: bytes, suffix: str) -> ForeignFormat | None:
    """Return the format of a file with these first bytes, at best `HEAD_BYTES`; None for an unknown one.

    `suffix` is that of the file: NetCDF-4 files are HDF5 files.
    """
    text = head.lstrip(_BEFORE_XML)
    if head.startswith(b"SQLite format 3\0"):
        return _MBTILES if suffix == ".mbtiles" else _SQLITES.get(head[68:72], _SQLITE)
    if head[257:262] == b"ustar":
        return _TAR
    if text.startswith(b"<"):
        return next((found for root, found in _XML if root in text), None)
    if text.startswith(b"{") and b'"zarr_format"' in text:
        return _ZARR
    found = next((each for magic, each in _MAGIC if head.startswith(magic)), None)
    if found is None and suffix in _RAW_SUFFIXES and not head.isascii():
        return _RAW
    return _NETCDF if found is _HDF5 and suffix in (".nc", ".nc4") else found
