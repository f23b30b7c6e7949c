"""The full round runs every chaos scenario and every long target once, in parts of at most 60 minutes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from infra import nightly
from tests.chaos.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_each_scenario_is_run_once() -> None:
    attacks = [step.command for step in nightly.STEPS if "tests.chaos" in step.command]
    assert Counter(word for command in attacks for word in command if word in SCENARIOS) == Counter(SCENARIOS.keys())


def test_each_target_is_there_and_all_test_targets_are_run() -> None:
    run = {step.command[1] for step in nightly.STEPS if step.command[0] == "make"}
    assert run <= TARGETS
    assert {name for name in TARGETS if re.search("^test|-test$|^check$|^fuzz$", name)} - run == {"test-all"}


@pytest.mark.parametrize("count", range(9, 20))
def test_every_step_is_in_one_part_of_sixty_minutes(count: int) -> None:
    parts = [nightly.part_of(f"{number}/{count}") for number in range(1, count + 1)]
    assert Counter(step.name for part in parts for step in part) == Counter(step.name for step in nightly.STEPS)
    assert max(sum(step.minutes for step in part) for part in parts) <= 60


@pytest.mark.parametrize("text", ["0/9", "10/9", "1", "1/1", "a/b"])
def test_another_part_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        nightly.part_of(text)


def test_a_summary_counts_tests_scenarios_and_mutants() -> None:
    output = (
        "versions: celery 5.7.0\n===== 12 passed, 3 skipped in 4.50s =====\n1 failed, 2 passed in 0.1s\n"
        "zombies: seed=7 jobs=60 lost=0 doubled=0\nflood: seed=7 BROKEN, logs in x\n"
        "no fence check: ok (unchanged green, mutant red; t)\nno sweeper: WRONG (unchanged green, mutant green; t)\n"
    )
    assert nightly.summary(output) == (
        "celery 5.7.0; 12 passed, 3 skipped in 4.50s; 1 failed, 2 passed in 0.1s; zombies jobs=60; flood BROKEN; "
        "seed 7; 1 of 2 mutants caught"
    )
