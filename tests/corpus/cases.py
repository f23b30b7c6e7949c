"""Every input with what it is given to and how it ends: the makers and the table, joined by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus import disguises, documents, pictures, rasters, sounds, table, texts
from tests.corpus.bodies import BODIES, NAMES, REFERENCES
from tests.corpus.outcomes import Outcome, Scene
from tests.support.geo.scenes import pattern
from tests.support.stack import SHARED


@dataclass(frozen=True)
class Case:
    """One input: the bytes of a file for a model, or a request as it is sent."""

    name: str
    outcome: Outcome
    model: str = ""
    #: A file's name and bytes.
    file: str = ""
    make: Callable[[], bytes] | None = None
    #: Fields of the request beside the file.
    input: Mapping[str, Any] = field(default_factory=dict)
    #: For what comes beside a scene, the good one: the field that takes it.
    beside: str = ""
    #: Fields of the job.
    job: Mapping[str, Any] = field(default_factory=dict)
    #: The body as it is posted, instead of all that.
    body: bytes | None = None


GOOD_SCENE = Case("good scene", Scene(64, 64), "one-band", "good.tif", disguises.sound)
ONE_BAND = {"bands": [1], "outputs": ["stats"]}
#: The field of each model's input that takes the file, and how.
FIELDS: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "csmask": lambda media: {"scene": media, "outputs": ["stats"]},
    "one-band": lambda media: {"scene": media, **ONE_BAND},
    "thumbnail": lambda media: {"images": [media]},
    "letters": lambda media: {"files": [media]},
    "listener": lambda media: {"audio": media, "language": "en"},
}


def all_cases(file: Path, url: str) -> list[Case]:
    """Return every bad input, and those that look bad and are right; some of them name this file or this address."""
    return [
        *_scenes(file, url),
        *_documents(),
        *_damaged(),
        *_pictures(),
        *_sounds(),
        *_texts(),
        *_requests(),
        *_shared(),
    ]


def good_cases() -> list[Case]:
    """Return a good job of each model, given to it between the others."""
    return [
        GOOD_SCENE,
        Case("good picture", table.QUARTERS, "thumbnail", "good.png", partial(pictures.saved, "PNG")),
        Case("good text", table.READ["plain.txt"], "letters", "good.txt", lambda: b"penstock"),
        Case("good sound", table.HEARD["sound.wav"], "listener", "good.wav", sounds.wav),
    ]


def last_cases() -> list[Case]:
    """Return what is done when all else is over: the heavy model's good job."""
    six = partial(rasters.raster, pattern(64, 64).astype("uint16").repeat(6, axis=0) * 30)
    return [Case("last scene", Scene(64, 64), "csmask", "good.tif", six, {"bands": [1, 2, 3, 4, 5, 6]}), *good_cases()]


def _scenes(file: Path, url: str) -> Iterator[Case]:
    for name, make in _same_names(rasters.ABSURD, table.ABSURD, but=("zero-bytes.tif",)):
        scene, picture = table.ABSURD[name]
        yield Case(f"{name} as a scene", scene, "one-band", name, make)
        yield Case(f"{name} as a picture", picture, "thumbnail", name, make)
    yield Case("400,000 items", table.SLOW, "one-band", "a.tif", rasters.SLOW, job={"execution_timeout": 3})
    for name, outcome in table.SIX_BANDS.items():
        make = {**rasters.ABSURD, **rasters.CUT}[name]
        yield Case(f"{name} for six bands", outcome, "csmask", name, make)
    yield Case("nothing as a scene", table.NOTHING, "one-band", "zero-bytes.tif", rasters.ABSURD["zero-bytes.tif"])
    for name, disguise in _same_names(disguises.DISGUISES, table.DISGUISES):
        yield Case(name, table.DISGUISES[name], "one-band", name, partial(disguise, file, url))
    for name, naming in disguises.NAMING.items():
        yield Case(name, table.NAMING, "one-band", name, partial(naming, file, url))


def _documents() -> Iterator[Case]:
    for name, make in _same_names(documents.DOCUMENTS, table.DOCUMENTS):
        for field_name, outcome in zip(("sidecar", "stac"), table.DOCUMENTS[name], strict=True):
            yield Case(f"{name} as {field_name}", outcome, "one-band", name, make, beside=field_name)


def _damaged() -> Iterator[Case]:
    for name, make in rasters.CUT.items():
        yield Case(name, table.CUT_SCENE, "one-band", f"{name}.tif", make)
    for name, make in rasters.FLIPPED.items():
        yield Case(name, table.FLIPPED_SCENE, "one-band", f"{name}.tif", make)
    for name, make in pictures.CUT.items():
        yield Case(name, table.CUT_PICTURE, "thumbnail", name, make)
    for name, make in pictures.FLIPPED.items():
        yield Case(name, table.FLIPPED_PICTURE, "thumbnail", name, make)


def _pictures() -> Iterator[Case]:
    for name, make in pictures.QUARTERS.items():
        yield Case(name, table.LIKE_QUARTERS, "thumbnail", name, make)
    for makers, outcomes in (
        (pictures.ODD, table.ODD), (pictures.BOMBS, table.BOMBS), (pictures.FOREIGN, table.FOREIGN),
    ):  # fmt: skip
        for name, make in _same_names(makers, outcomes, but=("zero-bytes.png",)):
            yield Case(name, outcomes[name], "thumbnail", name, make)
    yield Case("nothing as a picture", table.NOTHING, "thumbnail", "zero-bytes.png", pictures.FOREIGN["zero-bytes.png"])


def _sounds() -> Iterator[Case]:
    for name, make in sounds.SOUNDS.items():
        for model, outcome in zip(("one-band", "thumbnail", "letters"), table.SOUNDS, strict=True):
            yield Case(f"{name} for {model}", outcome, model, name, make)
    for name, make in _same_names(sounds.SOUNDS, table.HEARD):
        yield Case(f"{name} as a sound", table.HEARD[name], "listener", name, make)


def _texts() -> Iterator[Case]:
    for name, make in _same_names(texts.READ, table.READ):
        yield Case(f"{name} as a file", table.READ[name], "letters", name, make)
        body = texts.body(input={"texts": make().decode("utf-8-sig")})
        yield Case(f"{name} in a request", table.READ[name], body=body)
    for name, make in _same_names(texts.NO_TEXT, table.NO_TEXT):
        yield Case(name, table.NO_TEXT[name], "letters", name, make)


def _requests() -> Iterator[Case]:
    for name, (body, outcome) in BODIES.items():
        yield Case(f"body: {name}", outcome, body=body)
    for name, (reference, outcome) in REFERENCES.items():
        body = texts.body(model="one-band", input={"scene": reference, **ONE_BAND})
        yield Case(f"reference: {name}", outcome, body=body)
    for name, (filename, kept) in NAMES.items():
        outcome = table.NAMING if isinstance(kept, str) else kept
        yield Case(f"name that {name}", outcome, "one-band", filename, disguises.sound)


def _shared() -> Iterator[Case]:
    """Yield the shared data that `tests/acceptance/test_real_scenes.py` does not take through a service."""
    for path in sorted(SHARED.glob("audio/*")):
        for model, outcome in zip(("one-band", "thumbnail", "letters"), table.SOUNDS, strict=True):
            yield Case(f"{path.name} for {model}", outcome, model, path.name, path.read_bytes)
        yield Case(f"{path.name} as a sound", table.SHARED_HEARD[path.name], "listener", path.name, path.read_bytes)
    for path in sorted((*SHARED.glob("photo/*"), *SHARED.glob("edge/*"))):
        outcome = table.SHARED_PICTURES[path.name]
        yield Case(f"{path.name} as a picture", outcome, "thumbnail", path.name, path.read_bytes)


def _same_names(
    makers: Mapping[str, Any], outcomes: Mapping[str, Any], *, but: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    assert set(makers) - set(but) == set(outcomes), set(makers) ^ set(outcomes)
    return ((name, make) for name, make in makers.items() if name not in but)
