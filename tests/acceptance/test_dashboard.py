"""The Grafana dashboard: each query runs on a real Prometheus that scrapes a real service, and returns data."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.catalogues import TOY
from tests.support.polling import wait_for
from tests.support.stack import Stack, free_port, running
from tests.support.webhook_receivers import Receiver, receiving

pytestmark = pytest.mark.breadth

ROOT = Path(__file__).parents[2]
BOARD: dict[str, Any] = json.loads((ROOT / "infra" / "monitoring" / "dashboard.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {each["name"]: each for each in BOARD["templating"]["list"]}
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
#: Metrics of services with drop rules, of models that cache encodings, and of loads that end their process: none here.
MAY_BE_EMPTY = ("penstock_drop_events_total", "penstock_encoder_cache_bytes", "penstock_model_load_failures")
SCRAPE_S = 1


class TestBoard:
    def test_every_panel_has_a_place_a_unit_a_description_and_queries_of_the_chosen_prometheus(self) -> None:
        assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
        taken: set[tuple[int, int]] = set()
        for panel in BOARD["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert max(x for x, _ in cells) < 24
            assert not cells & taken, panel["title"]
            taken |= cells
        for panel in PANELS:
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert {each["datasource"]["uid"] for each in (panel, *panel["targets"])} == {"${datasource}"}

    def test_the_queries_ask_for_metrics_and_labels_that_exist_and_for_each_metric_of_the_page(self) -> None:
        """The page's table is compared with a service in `test_metrics.py`."""
        page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
        rows = dict(re.findall(r"^\| `(penstock_\w+)` \| \w+ \| (.*?) \|", page, re.MULTILINE))
        asked: set[str] = set()
        for title, expr in QUERIES:
            for metric, matchers in re.findall(r"(penstock_\w+)(?:\{([^}]*)\})?", expr):
                name = metric.removesuffix("_bucket")
                asked.add(name)
                labels = re.findall(r"(\w+)=~?\"", matchers)
                assert set(labels) <= set(re.findall(r"`(\w+)`", rows[name])), title
            assert set(re.findall(r"\$(\w+)", expr)) <= {*VARIABLES, "__rate_interval"}, title
        assert asked == set(rows)

    def test_the_page_of_monitoring_tells_of_the_dashboard(self) -> None:
        assert "dashboard.json" in (ROOT / "docs" / "howto" / "monitor.md").read_text()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving(500, 200) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("dashboard")
    toy = TOY.format(max_bytes=10_000_000).replace('title = "A toy"', 'title = "A toy"\ncache = true')
    (folder / "toy.toml").write_text(toy)
    config = f"models = [{json.dumps(str(folder / 'toy.toml'))}]\nallowed_hosts = [{json.dumps(receiver.pair)}]\n"
    with running(folder / "up", config=config) as stack:
        yield stack


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Iterator[str]:
    """Return the address of a Prometheus that scrapes the service."""
    program = shutil.which("prometheus")
    if program is None:
        reason = "needs Prometheus, of Debian's package prometheus (infra/apt.txt)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus_on(str(program), folder, stack.port) as url:
        yield url


@contextmanager
def prometheus_on(program: str, folder: Path, port: int) -> Iterator[str]:
    scrapes = {"job_name": "penstock", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    config = {"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": [scrapes]}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    options = [
        f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as out:
        process = subprocess.Popen([program, *options], stdout=out, stderr=out)
    try:
        wait_for(lambda: ask(f"http://{address}", "up") is not None, f"Prometheus does not answer: {folder / 'log'}")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, query: str) -> list[dict[str, Any]] | None:
    """Return the series that answer a query, None where Prometheus is not there yet."""
    try:
        response = httpx2.get(f"{url}/api/v1/query", params={"query": query}, timeout=10)
    except httpx2.TransportError:
        return None
    if response.status_code == 503:
        return None
    answer = response.json()
    assert answer["status"] == "success", f"{query}: {answer.get('error')}"
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def filled_in(expr: str) -> str:
    """Return a query as Grafana sends it with all queues and models chosen."""
    return expr.replace("$queue", ".*").replace("$model", ".*").replace("$__rate_interval", f"{30 * SCRAPE_S}s")


def run_jobs(stack: Stack, receiver: Receiver, number: int) -> None:
    """Run a job that fails; its webhook comes at the second try at the earliest."""
    path = stack.data.parent / f"{number}.tif"
    path.write_text(f"no scene {number}")
    with stack.client() as client:
        job = client.submit("toy", files={"scene": path}, webhook=f"http://{receiver.pair}/hook")
        assert client.wait(job.id, timeout_s=60).over


@pytest.mark.slow
def test_each_query_of_the_dashboard_returns_data_of_a_service_that_runs_jobs(
    stack: Stack, receiver: Receiver, prometheus: str
) -> None:
    ended = 'sum(penstock_jobs_ended_total{model="toy"})'
    run_jobs(stack, receiver, 1)
    wait_for(lambda: ask(prometheus, f"{ended} >= 1"), "Prometheus does not see the first job")
    run_jobs(stack, receiver, 2)
    wait_for(lambda: ask(prometheus, f"{ended} >= 2"), "Prometheus does not see the second job")
    seen = "sum(count_over_time(penstock_webhook_tries_total[30s])) >= 4"
    wait_for(lambda: ask(prometheus, seen), "the tries of webhooks are not there")

    answers = {expr: ask(prometheus, filled_in(expr)) for _, expr in QUERIES}
    empty = {expr for expr, found in answers.items() if not found}
    assert all(any(name in expr for name in MAY_BE_EMPTY) for expr in empty), empty
    values = {
        title: [float(series["value"][1]) for series in answers[expr] or []] for title, expr in QUERIES
    }  # fmt: skip
    assert values["API processes that answer"] == [1]
    assert values["Job store"] == [1]
    assert values["Share of failed jobs"] == [1]  # every job failed since the first scrape
    assert max(values["Ended jobs"]) > 0
    assert max(values["Requests"]) > 0
    assert any(math.isfinite(each) and each > 0 for each in values["Phases, 95th percentile"])

    for name in ("queue", "model"):
        metric = re.fullmatch(rf"label_values\((\w+), {name}\)", VARIABLES[name]["query"]["query"])
        assert metric is not None
        found = httpx2.get(f"{prometheus}/api/v1/label/{name}/values", params={"match[]": metric[1]}, timeout=10).json()
        assert {"queue": "default", "model": "toy"}[name] in found["data"]
