"""The result of a job that ran: its files as paths, opened by the library that their kind needs, and shown."""

from __future__ import annotations

import base64
import json
import tempfile
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.client.answer_text import answer_lines
from penstock.client.answers import ClientError, Job
from penstock.client.notebook import card, is_picture
from penstock.errors import with_places
from penstock.media_types import essence
from penstock.output_kinds import opener_of
from penstock.views import View, shown

#: Bytes of a picture that a notebook shows inline, at most.
MAX_INLINE_BYTES = 4_000_000


class JobFailed(ClientError):
    """A job ended without a result. `job` is the job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        error = job.error
        why = job.status.value if error is None else f"{error.code}: {with_places(error.detail, error.errors)}"
        super().__init__(f"job {job.id} of {job.model} has no result: {why}")


@dataclass(frozen=True)
class Result:
    """The result of a job.

    `result.classes` is the path of `classes.tif`, `result["classes.tif"]` too. `result["words"]` is a field of the
    result's JSON, and `result["label"]` one of the best label.
    """

    job: Job
    #: The folder that holds the files.
    folder: Path
    #: The job's page at the service.
    page: str
    #: The forms in which people read `data`.
    views: tuple[View, ...] = ()

    def __repr__(self) -> str:
        files = f": {', '.join(self.paths)}" if self.paths else ""
        return "\n".join([f"<Result of {self.job.model}, job {self.job.id}{files}>", *self._lines()])

    def _lines(self) -> list[str]:
        return answer_lines(self.text, self.data, self.views)

    @property
    def text(self) -> str | None:
        """The job's text, if it has one."""
        return self.job.text

    @property
    def data(self) -> Mapping[str, Any] | None:
        """The job's JSON, if it has any."""
        return self.job.data

    @property
    def paths(self) -> dict[str, Path]:
        """The path of each artifact, by its name."""
        return {artifact.name: self.folder / artifact.name for artifact in self.job.artifacts}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error.args[0])) from None

    def __getitem__(self, name: str) -> Any:
        """Return the path of an artifact by its name, with or without its suffix; else a field of the answer."""
        if name in self.paths:
            return self.paths[name]
        for known, path in self.paths.items():
            if known.partition(".")[0].replace("-", "_") == name:
                return path
        fields = self._fields()
        if name in fields:
            return fields[name]
        raise KeyError(f"the result has no {name!r}; it has: {', '.join((*self.paths, *fields)) or 'nothing'}")

    def _fields(self) -> Mapping[str, Any]:
        """Return the text, the fields of the JSON, and those of the best label."""
        text = {} if self.text is None else {"text": self.text}
        best = next((part.items[0] for part in shown(self.views, self.data) if part.form == "labels"), None)
        return {**text, **(best if isinstance(best, Mapping) else {}), **(self.data or {})}

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name.partition(".")[0].replace("-", "_") for name in self.paths)]

    def open(self, name: str | None = None) -> Any:
        """Open an artifact, by default the first one: a raster with rasterio, vectors with geopandas, and so on.

        A `.tif` is opened by rasterio, `.nc` by xarray, `.geojson`, `.gpkg` and GeoParquet by geopandas, another
        `.parquet` by pandas, a picture by Pillow, `.npy` by numpy; JSON and text are read. A
        package that declares an output kind opens its own files. Raises `ClientError` where the library is missing.
        """
        if name is None and not self.paths:
            raise ClientError("the result has no files: see its `text` and `data`")
        path = next(iter(self.paths.values())) if name is None else self[name]
        if not isinstance(path, Path):
            raise ClientError(f"{name} is no file of the result: it is result[{name!r}]")
        kinds = {artifact.name: artifact.content_type for artifact in self.job.artifacts}
        opener = opener_of(path.name, kinds.get(path.name, "")) or _opener(path)
        return opener(path)

    def show(self) -> None:
        """Show the result: in a notebook its pictures and files, elsewhere the job's page in the browser."""
        try:
            running = import_module("IPython").get_ipython()
        except ModuleNotFoundError:
            running = None
        if running is not None:
            import_module("IPython.display").display(self)
        elif not webbrowser.open(self.page):
            raise ClientError(f"no browser was found: open {self.page}")

    def _repr_html_(self) -> str:
        pictures = [_inline(self.paths[a.name], a.content_type) for a in self.job.artifacts if is_picture(a)]
        return card(self.job, [picture for picture in pictures if picture], page=self.page, answer=self._lines())


def _inline(path: Path, content_type: str) -> str | None:
    if not path.is_file() or path.stat().st_size > MAX_INLINE_BYTES:
        return None
    return f"data:{essence(content_type)};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _opener(path: Path) -> Callable[[Path], Any]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        library = "geopandas" if _is_geoparquet(path) else "pandas"
        return partial(_with_library, library, "read_parquet", library)
    if suffix in _LIBRARIES:
        return partial(_with_library, *_LIBRARIES[suffix])
    if suffix == ".json":
        return lambda found: json.loads(found.read_text(encoding="utf-8"))
    if suffix in (".txt", ".csv", ".md", ".srt", ".vtt", ".jsonl", ".qml"):
        return partial(Path.read_text, encoding="utf-8")
    raise ClientError(f"{path.name} cannot be opened here: use its path, {path}")


#: Suffix -> the module, its function, and the package to install.
_LIBRARIES: Mapping[str, tuple[str, str, str]] = {
    **dict.fromkeys((".tif", ".tiff", ".jp2"), ("rasterio", "open", "rasterio")),
    **dict.fromkeys((".nc", ".h5"), ("xarray", "open_dataset", "xarray")),
    **dict.fromkeys((".geojson", ".gpkg", ".fgb"), ("geopandas", "read_file", "geopandas")),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".webp"), ("PIL.Image", "open", "pillow")),
    ".npy": ("numpy", "load", "numpy"),
    ".safetensors": ("safetensors.numpy", "load_file", "safetensors"),
}


def _is_geoparquet(path: Path) -> bool:
    """Return True for vectors: their content type is that of a table, but GeoParquet has the metadata `geo`."""
    return b"geo" in (_with_library("pyarrow.parquet", "read_schema", "pyarrow", path).metadata or {})


def _with_library(module: str, function: str, package: str, path: Path) -> Any:
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        raise ClientError(f"opening {path.name} needs {package}: pip install {package} (or use {path})") from error
    return getattr(found, function)(path)


#: Folders of results without a folder of their own; deleted when the process ends.
_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def new_folder() -> Path:
    """Return a new folder that is deleted when the process ends."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix="penstock-"))
    return Path(_KEPT[-1].name)
