"""The pages on Kubernetes: every command that needs no cluster is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helm.conftest import ROOT, Tools, of_kind
from tests.support.doc_pages import blocks


def run_page(tools: Tools, page: str, folder: Path) -> list[str]:
    """Write the files of a page and run its commands beside `infra/`; return the commands."""
    (folder / "infra").symlink_to(ROOT / "infra")
    env = {**os.environ, "PATH": f"{tools.folder / 'bin'}:{os.environ['PATH']}"}
    commands = []
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.code)
        elif block.language == "bash":
            command = ["bash", "-euo", "pipefail", "-c", block.code]
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{block.code}\n{done.stdout}{done.stderr}"
            commands += block.code.splitlines()
    return commands


def test_the_page_on_kubernetes(tools: Tools, tmp_path: Path) -> None:
    commands = run_page(tools, "kubernetes.md", tmp_path)

    assert len(commands) == 6
    rendered = [each for each in yaml.load_all((tmp_path / "pools.yaml").read_text(), yaml.CSafeLoader) if each]
    assert [each["metadata"]["name"] for each in of_kind(rendered, "ScaledJob")] == ["penstock-l4"]
    fitted = [each for each in yaml.load_all((tmp_path / "fitted.yaml").read_text(), yaml.CSafeLoader) if each]
    assert [each["metadata"]["name"] for each in of_kind(fitted, "Ingress")] == ["inference"]


def test_the_page_on_scaling_to_zero(tools: Tools, tmp_path: Path) -> None:
    commands = run_page(tools, "scale-to-zero.md", tmp_path)

    assert len(commands) == 2
    rendered = [each for each in yaml.load_all((tmp_path / "workers.yaml").read_text(), yaml.CSafeLoader) if each]
    assert sorted(each["kind"] for each in rendered) == ["Deployment", "ScaledJob", "ScaledObject"]


@pytest.mark.parametrize("page", ["kubernetes.md", "scale-to-zero.md"])
def test_commands_that_need_no_cluster_are_among_those_that_are_run(page: str) -> None:
    left = [block.code for block in blocks(page) if block.language not in ("bash", "yaml")]

    assert not [code for code in left if "helm lint" in code or "helm template" in code]
