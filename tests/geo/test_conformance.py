"""The shipped model passes the conformance test with its real weights, through the real engine."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock.catalogue.records import read_catalogue
from penstock.processors.registry import Registry
from penstock.processors.testing import check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners

SCENE = Path(__file__).parents[3] / "shared/data/geo/l8_betsiboka_20200127_6b.tif"


@pytest.mark.breadth
@pytest.mark.slow
def test_csmask_conforms_and_finds_the_published_shares() -> None:
    if not SCENE.exists():
        pytest.skip(f"the real scene is not here: {SCENE.name}")
    model = read_catalogue()["csmask"]
    with closing(BatchingEngine(Runners.installed())) as engine:
        finished = check_processor(
            Registry.imported().processor_for(model),
            {"scene": "media://1"},
            {"media://1": SCENE},
            engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
            other={"scene": "media://1", "outputs": ["stats"]},
        )
    expected = {"classes.tif", "classes.tif.aux.xml", "classes.qml", "preview.png", "stats.json"}
    assert set(finished.artifacts) == expected
    assert finished.result.data is not None
    shares = {label["name"]: label["percent"] for label in finished.result.data["classes"]}
    assert (shares["water"], shares["snow or ice"], shares["land"]) == pytest.approx((18, 29, 53), abs=1)
