"""The check of radiometry as a pure function: impossible values are refused, rare ones noted, right ones accepted."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from penstock.catalogue.records import read_catalogue
from penstock.errors import InvalidInput
from penstock.processors.geo.options import Band, SegmentationOptions, read_options
from penstock.processors.geo.read.encodings import ENCODINGS, Encoding
from penstock.processors.geo.read.plausibility import Grade, Training, grade, judge
from penstock.processors.geo.read.radiometry import BandRadiometry, Radiometry
from penstock.processors.geo.read.radiometry_check import check_numbers

Values = npt.NDArray[np.float64]
PIXELS = 1000
#: Reflectances of blue, green, red, near infrared, 1.6 µm and 2.2 µm of scenes that are covered by one surface.
SURFACES = {
    "fresh snow": (0.95, 0.94, 0.93, 0.85, 0.12, 0.09),
    "snow at a low sun": (1.3, 1.25, 1.2, 1.05, 0.15, 0.1),
    "old snow": (0.75, 0.74, 0.7, 0.55, 0.06, 0.05),
    "blue ice": (0.75, 0.68, 0.58, 0.4, 0.03, 0.03),
    "stratus": (0.72, 0.7, 0.7, 0.74, 0.62, 0.5),
    "ice cloud": (0.9, 0.88, 0.88, 0.88, 0.4, 0.3),
    "bright desert": (0.22, 0.28, 0.4, 0.5, 0.62, 0.56),
    "salt": (0.5, 0.55, 0.6, 0.62, 0.4, 0.3),
    "forest, surface reflectance": (0.02, 0.04, 0.02, 0.3, 0.12, 0.05),
    "crops, surface reflectance": (0.03, 0.07, 0.03, 0.55, 0.2, 0.1),
    "ocean": (0.11, 0.075, 0.045, 0.02, 0.006, 0.004),
    "ocean, surface reflectance": (0.03, 0.02, 0.01, 0.004, 0.003, 0.002),
    "ocean at a low sun": (0.2, 0.13, 0.08, 0.04, 0.01, 0.005),
    "sun glint": (0.25, 0.22, 0.19, 0.17, 0.15, 0.13),
    "turbid water": (0.14, 0.18, 0.22, 0.15, 0.02, 0.01),
    "dark lake, surface reflectance": (0.012, 0.015, 0.01, 0.008, 0.004, 0.002),
    "red soil": (0.08, 0.1, 0.2, 0.3, 0.4, 0.35),
    "lava": (0.09, 0.07, 0.06, 0.07, 0.07, 0.06),
}
BY_NAME = {encoding.name.split(" (")[0]: encoding for encoding in ENCODINGS}


def training(unit: float = 1.0) -> Training:
    bands = read_options(read_catalogue()["csmask"], SegmentationOptions).bands
    scaled = [b.model_copy(update={"mean": b.mean * unit, "std": b.std * unit, "range": (0, unit)}) for b in bands]
    return Training(tuple(scaled), unit)


def surface(name: str) -> Values:
    """Return a scene (6, pixels) of one surface, with shades and noise."""
    rng = np.random.default_rng(3)
    shade = 1 + 0.06 * rng.normal(size=(1, PIXELS))
    return np.array(SURFACES[name])[:, None] * shade + rng.normal(0, 0.002, (6, PIXELS))


def mixed() -> Values:
    """Return a usual scene: fields, forest, sea, soil and some cloud."""
    names = ("crops, surface reflectance", "forest, surface reflectance", "ocean", "red soil", "stratus")
    return np.concatenate([surface(name) for name in names], axis=1)


def numbers(values: Values, encoding: Encoding) -> Values:
    whole = np.rint((values - encoding.offset) / encoding.scale)
    return whole.clip(1, 65_535) if encoding.scale < 1 else values


def verdict_of(values: Values, stored: Encoding, applied: Encoding):  # type: ignore[no-untyped-def]
    return judge(numbers(values, stored), [applied.scale] * 6, [applied.offset] * 6, training())


@pytest.mark.parametrize("name", SURFACES)
def test_a_scene_of_one_surface_is_never_refused(name: str) -> None:
    for encoding in ENCODINGS:
        assert not verdict_of(surface(name), encoding, encoding).refused, encoding.name


@pytest.mark.parametrize("stored", BY_NAME)
def test_a_usual_scene_in_its_own_encoding_has_no_findings(stored: str) -> None:
    assert verdict_of(mixed(), BY_NAME[stored], BY_NAME[stored]).graded.findings == ()


#: (stored, applied) that no finding tells apart: the values are six times too small, and a floor replaces the dark.
NOT_TOLD = {("Sentinel-2 since processing baseline 04.00", "reflectance x 65535")}


@pytest.mark.parametrize("stored", BY_NAME)
@pytest.mark.parametrize("applied", BY_NAME)
def test_a_usual_scene_in_another_encoding_is_refused_or_noted_and_the_encoding_is_named(
    stored: str, applied: str
) -> None:
    if stored == applied or (stored, applied) in NOT_TOLD:
        return
    verdict = verdict_of(mixed(), BY_NAME[stored], BY_NAME[applied])
    assert verdict.refused or verdict.doubtful
    assert BY_NAME[stored] in verdict.likely[:2]


@pytest.mark.parametrize("unit", [1.0, 10_000.0])
def test_the_refusal_gives_the_radiometry_in_the_model_s_unit(unit: float) -> None:
    landsat = BY_NAME["Landsat Collection 2 level 2"]
    used = Radiometry((BandRadiometry(1e-4 * unit, 0.0, 0, "model default", "model default"),) * 6)
    with pytest.raises(InvalidInput) as refused:
        list(check_numbers(numbers(mixed(), landsat), used, training(unit)))
    given = {1.0: '{"scale": 0.0000275, "offset": -0.2}', 10_000.0: '{"scale": 0.275, "offset": -2000}'}[unit]
    assert f'The numbers look like Landsat Collection 2 level 2: give "radiometry": {given}' in str(refused.value)
    assert f"--param 'radiometry={given}'" in str(refused.value)
    assert [issue.pointer for issue in refused.value.errors] == ["/input/radiometry"]


def test_level_1_of_landsat_asks_for_the_product_s_metadata() -> None:
    used = Radiometry((BandRadiometry(1e-4, 0.0, 0, "model default", "model default"),) * 6)
    with pytest.raises(InvalidInput, match=r"look like Landsat level 1: give the product's \*_MTL.json as `sidecar`"):
        list(check_numbers(numbers(mixed(), BY_NAME["Landsat level 1"]), used, training()))


@pytest.mark.parametrize(("sun", "words"), [(28, "28.0 degrees"), (90, "90.0 degrees")])
def test_the_sun_of_level_1_of_landsat_is_noted_unless_the_product_gives_it(sun: float, words: str) -> None:
    sine = math.sin(math.radians(sun))
    level_1 = Encoding("level 1", 2e-5 / sine, -0.1 / sine)
    by_request = Radiometry((BandRadiometry(level_1.scale, level_1.offset, 0, "request", "request"),) * 6)
    by_product = Radiometry((BandRadiometry(level_1.scale, level_1.offset, 0, "sidecar", "sidecar"),) * 6)
    stored = numbers(mixed(), level_1)
    assert any(f"right for Landsat level 1 with the sun at {words}" in n for n in notes(stored, by_request))
    assert notes(stored, by_product) == []


def notes(stored: Values, used: Radiometry) -> list[str]:
    return list(check_numbers(stored, used, training()))


def test_trusted_radiometry_is_noted_instead_of_refused() -> None:
    used = Radiometry((BandRadiometry(1.0, 0.0, 0, "request", "request", trusted=True),) * 6)
    (note,) = check_numbers(mixed() * 1e4, used, training())
    assert note.startswith("The values are implausible, but the request trusts them: band ")


def test_an_offset_that_cannot_be_seen_is_noted() -> None:
    used = Radiometry((BandRadiometry(1e-4, 0.0, 0, "model default", "model default"),) * 6)
    (note,) = check_numbers(numbers(mixed(), BY_NAME["Sentinel-2 since processing baseline 04.00"]), used, training())
    assert note.startswith(
        "The radiometry cannot be verified: no pixel is dark in any band: the lowest reflectance is "
    )
    assert (
        'If the numbers are Sentinel-2 since processing baseline 04.00, give "radiometry": {"scale": 0.0001, ' in note
    )


def test_a_picture_that_was_stretched_for_display_is_refused_with_any_radiometry() -> None:
    low, high = np.percentile(mixed(), (2, 98), axis=1)[:, :, None]
    picture = np.rint((mixed() - low) / (high - low) * 255).clip(0, 255)
    used = Radiometry((BandRadiometry(1 / 255, 0.0, None, "request", "none"),) * 6)
    with pytest.raises(InvalidInput, match=r"each band runs from 0 to 255, as in a picture for display.*`Raw data`"):
        list(check_numbers(picture, used, training(), eight_bit=True))


def test_eight_bit_numbers_are_noted_with_any_radiometry() -> None:
    used = Radiometry((BandRadiometry(1 / 255, 0.0, None, "request", "none"),) * 6)
    (note,) = check_numbers(numbers(mixed(), BY_NAME["reflectance x 255"]), used, training(), eight_bit=True)
    assert note.startswith("The scene has 8-bit numbers. 8-bit files are usually pictures. Reflectance cannot be")
    assert '"radiometry": {"scale": 0.003921569, "offset": 0}' in note


def test_a_few_pixels_of_any_colour_are_accepted() -> None:
    few = surface("fresh snow")[:, :20]
    assert grade(few[::-1], training()).grade is Grade.USUAL
    assert grade(few[:, :0], training()).grade is Grade.USUAL


def test_a_model_of_another_quantity_is_checked_against_its_range_only() -> None:
    bands = (Band(name="vv", mean=-12.0, std=4.0, range=(-30.0, 5.0)), Band(name="vh", mean=-19.0, std=4.0))
    decibels = Training(bands, None)
    assert judge(np.full((2, 500), -20.0), [1, 1], [0, 0], decibels).graded.grade is Grade.USUAL
    used = Radiometry((BandRadiometry(1.0, 0.0, None, "model default", "none"),) * 2)
    with pytest.raises(
        InvalidInput, match=r"band vv has a median of 600, but was -30 to 5 in training\. Give the scale"
    ):
        list(check_numbers(np.full((2, 500), 600.0), used, decibels))
