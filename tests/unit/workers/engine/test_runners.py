from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.engine.base import HUB_FILES, RunnerSpec
from penstock.workers.engine.fake import load_fake
from penstock.workers.engine.runners import GROUP, Runners


def a_model(runner: str = "good") -> Model:
    return Model(name="m", title="M", runner=runner, processor="none", source="none", revision="7")


def fails(model: Model) -> int:
    raise KeyError(model.name)


RUNNERS = Runners.of({"good": load_fake, "fake": load_fake})


def test_registering_returns_a_new_registry() -> None:
    more = RUNNERS.register("other", RunnerSpec(load_fake))
    assert set(RUNNERS.specs) == {"good", "fake"}
    assert set(more.specs) == {"good", "fake", "other"}
    with pytest.raises(TypeError):
        more.specs["third"] = RunnerSpec(load_fake)  # type: ignore[index]


def test_an_unknown_name_lists_the_known_ones_without_the_one_for_tests() -> None:
    for ask in (RUNNERS.load, RUNNERS.check, RUNNERS.hub_files):
        with pytest.raises(ModelUnavailable, match=r"there is no runner 'magic'; known runners: good$"):
            ask(a_model("magic"))
    assert RUNNERS.expected_bytes(a_model("magic")) == 0


@pytest.mark.parametrize(
    ("value", "problem"),
    [("no_such_module:RUNNER", "cannot be imported: ModuleNotFoundError"), ("json:dumps", "is not a RunnerSpec")],
)
def test_a_broken_plugin_is_a_problem_of_its_models_and_others_serve(value: str, problem: str) -> None:
    runners = Runners({**RUNNERS.specs, "plugin": EntryPoint("plugin", value, GROUP)})
    for ask in (runners.load, runners.check, runners.hub_files):
        with pytest.raises(ModelUnavailable, match=f"the runner 'plugin': {value} {problem}"):
            ask(a_model("plugin"))
    assert runners.expected_bytes(a_model("plugin")) == 0
    runners.load(a_model())


def test_an_error_of_a_plugins_own_is_a_problem_of_the_model() -> None:
    runners = Runners({"odd": RunnerSpec(load_fake, check=fails, expected_bytes=fails)})
    with pytest.raises(ModelUnavailable, match=r"model 'm' could not be checked \(KeyError\)"):
        runners.check(a_model("odd"))
    assert runners.expected_bytes(a_model("odd")) == 0
    assert runners.hub_files(a_model("odd")) == HUB_FILES
    runners.load(a_model("odd"))


def test_reading_the_entry_points_imports_no_heavy_library() -> None:
    program = (
        "import sys; from penstock.workers.engine.runners import Runners; "
        "[point.load() for point in Runners.installed().specs.values() if point.value.startswith('penstock.')]; "
        "sys.exit(', '.join(sys.modules.keys() & {'torch', 'onnxruntime', 'transformers', 'diffusers', 'lightgbm'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.strip() == ""
