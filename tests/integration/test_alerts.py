"""The alerts: Prometheus accepts them, each fires and stays silent when it should, and its metrics exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "infra" / "monitoring" / "alerts.yaml"
CASES = ALERTS.with_name("alerts_test.yaml")
NAMES = re.findall(r"- alert: (\w+)", ALERTS.read_text())
#: Selectors: the name of a metric, and its matchers.
SELECTOR = re.compile(r"(penstock_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        reason = "needs promtool, of Debian's package prometheus (infra/apt.txt)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return str(found)


def selectors() -> Iterator[tuple[str, list[str]]]:
    """Yield the metrics of the alerts' expressions with the labels that these select."""
    blocks = re.findall(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", ALERTS.read_text(), re.DOTALL)
    assert len(blocks) == len(NAMES)
    for name, matchers in (found for block in blocks for found in SELECTOR.findall(block)):
        yield name, re.findall(r"(\w+)=~?\"", matchers)


def test_prometheus_accepts_its_configuration_for_compose(promtool: str, tmp_path: Path) -> None:
    for path in (ALERTS, ALERTS.with_name("prometheus.yml")):
        shutil.copy(path, tmp_path)
    (tmp_path / "prometheus.key").write_text("key")
    ended = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "job_name: penstock" in (tmp_path / "prometheus.yml").read_text()


@pytest.mark.breadth(but=("command0",))
@pytest.mark.parametrize("command", [["check", "rules", ALERTS.name], ["test", "rules", CASES.name]])
def test_prometheus_accepts_the_alerts_and_their_cases(command: list[str], promtool: str) -> None:
    ran = subprocess.run([promtool, *command], cwd=ALERTS.parent, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "SUCCESS" in ran.stdout


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    cases = re.findall(r"- name: (\w+) (fires|is silent)", CASES.read_text())
    assert sorted(cases) == sorted((name, kind) for name in NAMES for kind in ("fires", "is silent"))


def test_the_alerts_ask_for_metrics_and_labels_that_exist() -> None:
    """The page's table is compared with a service in `test_metrics.py`."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(penstock_\w+)` \| \w+ \| (.*?) \|", page, re.MULTILINE))
    asked = list(selectors())
    assert len(asked) >= len(NAMES)
    for name, labels in asked:
        assert set(labels) <= set(re.findall(r"`(\w+)`", rows[name])), name


def test_the_page_tells_what_to_do_for_each_alert() -> None:
    page = (ROOT / "docs" / "howto" / "monitor.md").read_text()
    assert re.findall(r"^\| `(Penstock\w+)` \|", page, re.MULTILINE) == NAMES
