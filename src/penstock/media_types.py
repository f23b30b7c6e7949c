"""Media types (RFC 9110): the values of `Content-Type`, which stores and servers send on as a header."""

from __future__ import annotations

import re
from typing import Any

#: Characters of a media type with its parameters, at most.
_MAX_CHARS = 255
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = rf'[ \t]*;[ \t]*{_WORD}=(?:{_WORD}|"[ !#-\[\]-~]*")'
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:{_PARAMETER})*")


def is_media_type(text: str) -> bool:
    """Return True for `type/subtype` with or without parameters, in ASCII, of at most 255 characters."""
    return len(text) <= _MAX_CHARS and _MEDIA_TYPE.fullmatch(text) is not None


def essence(media_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


_REFERENCE = re.compile(r"(media|s3|https?|job)://")


def is_reference(text: str) -> bool:
    """Return True if a text is a reference to media that the service fetches itself, and not a local file."""
    return _REFERENCE.match(text) is not None


#: Key of the JSON Schema of a media field: the name of the field for the files that lie beside a local file.
BESIDE = "x-beside"

#: Key of the JSON Schema of a media field: the endings of the names of its files, in lower case.
SUFFIXES = "x-suffixes"

#: Key of the JSON Schema of a table's field: its columns, objects with `name`, and `words` where it has only these.
COLUMNS = "x-columns"


def _named(*suffixes: str) -> dict[str, Any]:
    return {SUFFIXES: list(suffixes)}


#: Marks of media fields, for `json_schema_extra`: names of files that the processors of this kind read.
IMAGE_FILES = _named(".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
RASTER_FILES = _named(".tif", ".tiff", ".jp2")
#: Rasters, and products of many: NetCDF, HDF5, and zip archives of SAFE and Zarr.
SCENE_FILES = _named(".tif", ".tiff", ".jp2", ".nc", ".nc4", ".h5", ".hdf5", ".zip")
AUDIO_FILES = _named(".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".mp4", ".webm")
VIDEO_FILES = _named(".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi")
TABLE_FILES = _named(".parquet", ".csv")
TENSOR_FILES = _named(".safetensors", ".npy")
TEXT_FILES = _named(".txt", ".md")
