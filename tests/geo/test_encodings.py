"""Real scenes in every usual encoding: right ones are accepted, wrong ones refused or noted, and the message is enough.

The scenes are not part of the project; without them these tests are skipped. `python -m tests.support.geo.encodings`
also computes the maps.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InvalidInput
from tests.support.geo.encodings import (
    DATA,
    SIX,
    STORED,
    Case,
    Stored,
    cases,
    models,
    right,
    scenes,
    verdict,
    write,
)
from tests.support.geo.scenes import make_model, segment, write_scene

#: The encoding of the models' default, and another one.
RIGHT = "Sentinel-2 before 04.00, HLS, Landsat C1 level 2 (x 10000), uint16"
LANDSAT = "Landsat C2 level 2, uint16"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")


def by_default(stored: Stored, folder: Path) -> list[Case]:
    known, found = models(), []
    for scene in scenes():
        model = known["csmask" if scene.bands == SIX else "s2cloudless"]
        path = write(scene, stored, folder / f"{scene.name}.tif")
        found.append(verdict(model, scene, path, stored))
    return found


@pytest.mark.breadth(but=(RIGHT, LANDSAT))
@pytest.mark.parametrize("stored", STORED, ids=lambda stored: f"{stored.name}, {stored.dtype}")
def test_a_file_without_tags_is_accepted_if_the_default_is_right_and_else_refused_or_noted(
    stored: Stored, tmp_path: Path
) -> None:
    for case in by_default(stored, tmp_path):
        assert (case.outcome == "accepted") == right(case), (case.scene, case.text)


@pytest.mark.breadth(but=(LANDSAT,))
@pytest.mark.parametrize("stored", STORED, ids=lambda stored: f"{stored.name}, {stored.dtype}")
def test_the_radiometry_of_the_message_gives_the_right_values(stored: Stored, tmp_path: Path) -> None:
    if not stored.called or stored.called == "Landsat level 1":  # its message asks for the product's metadata
        return
    for scene in scenes():
        if scene.bands == SIX:
            path = write(scene, stored, tmp_path / f"{scene.name}.tif")
            case = verdict(models()["csmask"], scene, path, stored)
            text = re.search(r'"radiometry": (\{.*?\})', case.text)
            assert text is not None
            given = json.loads(text[1])
            assert case.named
            assert given == pytest.approx({"scale": stored.scale, "offset": stored.offset}, rel=1e-6)
            followed = verdict(models()["csmask"], scene, path, stored, replace(stored, **given))
            assert (followed.outcome, followed.text) == ("accepted", ""), scene.name


@pytest.mark.timeout(1200)  # 1,200 verdicts, 0.2 s each where nothing else runs
@pytest.mark.breadth
def test_no_request_with_the_right_encoding_is_refused_and_few_wrong_ones_are_accepted(tmp_path: Path) -> None:
    found = [case for case in cases(tmp_path) if case.given is not None]
    assert not [case for case in found if right(case) and case.outcome == "refused"]
    wrongly = [case for case in found if not right(case) and case.outcome == "accepted"]
    # Percent and reflectance x 255 differ by a factor of 2.55 only.
    assert {(case.stored.called, case.given.called) for case in wrongly if case.given} <= {
        ("reflectance in percent", "reflectance x 255")
    }
    assert len(wrongly) <= 0.005 * len(found)


def test_the_check_sees_fill_and_data_in_a_corner_of_a_large_scene(tmp_path: Path) -> None:
    scene = scenes()[0]
    numbers = np.zeros((6, 3000, 3000), np.uint16)
    small = np.nan_to_num(np.rint(scene.reflectance * 1e4 * 5), nan=0)[:, :400, :400]
    numbers[:, 100:500, 2300:2700] = small.astype(np.uint16)
    path = write_scene(tmp_path / "s.tif", numbers, descriptions=SIX, tiled=True, compress="deflate")
    case = verdict(models()["csmask"], scene, path, STORED[0])
    assert case.outcome == "refused"


def test_dates_are_checked_one_by_one_and_trust_turns_the_refusal_into_a_note(tmp_path: Path) -> None:
    scene, (good, bad) = scenes()[0], ("good.tif", "bad.tif")
    write(scene, STORED[0], tmp_path / good)
    landsat = next(stored for stored in STORED if stored.called == "Landsat Collection 2 level 2")
    write(scene, landsat, tmp_path / bad)
    bands = models()["csmask"].options["bands"]
    defaults = [{"dtypes": ["uint16"], "scale": 1e-4, "nodata": 0}]
    model = make_model(bands=bands, dates=2, reflectance=1.0, default_radiometry=defaults)
    dates = [{"scene": str(tmp_path / good)}, {"scene": str(tmp_path / bad)}]
    with pytest.raises(InvalidInput, match=r"^Date 2: With scale 0\.0001 .* look like Landsat Collection 2 level 2"):
        segment(None, tmp_path / "out", model=model, dates=dates)
    dates[1]["radiometry"] = {"trust": True}  # type: ignore[assignment]  # a table, not a name
    _, result = segment(None, tmp_path / "trusted", model=model, dates=dates)
    assert result.data is not None
    assert result.data["notes"][-1].startswith("Date 2: The values are implausible, but the request trusts them")
