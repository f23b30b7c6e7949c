"""The tools that `make helm-test` installs, and charts that they have rendered."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "infra" / "helm" / "penstock"
#: Files of values, each a way to install the chart.
VALUES = sorted((CHART / "ci").glob("*.yaml"))
NAMESPACE = "models"

#: A rendered object of Kubernetes.
Object = dict[str, Any]


@dataclass(frozen=True)
class Tools:
    """The folder that `infra/helm/tools.sh` has filled."""

    folder: Path

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of the tools; fail with its output unless it may fail."""
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{self.folder / 'venv' / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 or not check, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def template(self, *options: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Render the chart as the release `penstock`."""
        return self.run("helm", "template", "penstock", CHART, "--namespace", NAMESPACE, *options, check=check)

    def render(self, *options: str | Path) -> list[Object]:
        """Return the rendered objects."""
        return [found for found in yaml.load_all(self._rendered(*options), yaml.CSafeLoader) if found]

    @cache  # noqa: B019  (one for a run)
    def _rendered(self, *options: str | Path) -> str:
        return self.template(*options).stdout

    def refusal(self, folder: Path, values: Path, change: Object) -> str:
        """Return the words with which Helm refuses the changed values; empty where it renders them."""
        changed = folder / "change.yaml"
        changed.write_text(json.dumps(change))
        done = self.template("-f", values, "-f", changed, check=False)
        return done.stderr if done.returncode else ""


@pytest.fixture(scope="session")
def tools() -> Tools:
    folder = Path(os.environ.get("PENSTOCK_HELM_TOOLS") or ROOT / ".helm-tools").resolve()
    if not (folder / ".ready").exists():
        pytest.skip("needs helm and the checkers of charts: run `make helm-test`")
    return Tools(folder)


@pytest.fixture(params=VALUES, ids=lambda path: path.stem)
def values(request: pytest.FixtureRequest) -> Path:
    """Return each file of values."""
    path: Path = request.param
    return path


@pytest.fixture
def objects(tools: Tools, values: Path) -> list[Object]:
    """Return the objects that the chart makes of each file of values."""
    return tools.render("-f", values)


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Return the objects of a kind."""
    return [each for each in objects if each["kind"] == kind]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """Return the object of this kind and name."""
    return next(each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)


def pod_templates(objects: list[Object]) -> dict[str, Object]:
    """Return the templates of all pods by `kind/name`."""
    found = {}
    for each in objects:
        spec = each.get("spec", {})
        template = spec.get("template") or spec.get("jobTargetRef", {}).get("template")
        if template:
            found[f"{each['kind']}/{each['metadata']['name']}"] = template
    return found


def containers(template: Object) -> list[Object]:
    """Return the containers of a pod, those that run before the others included."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
