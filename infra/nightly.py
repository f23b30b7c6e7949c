"""The full round of checks, in parts: `make nightly PART=2/8`, then `make nightly-table`.

Each step saves its result in `tests/nightly/STEP.json`, with the commit on which it ran: the parts may run on different
days and machines. The table has one row per step, with the last saved result.

    python infra/nightly.py run 2/8      run the second of eight parts, 60 minutes at most
    python infra/nightly.py list 8       print the steps of each part
    python infra/nightly.py table        print the table of the saved results
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "nightly"
#: Seconds that a part may take, and a step gets to end after SIGTERM.
PART_S, GRACE_S = 3600, 30
#: Characters of the output that a row keeps.
_SUMMARY = 200


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the full round."""

    name: str
    command: tuple[str, ...]
    #: Minutes on two slow cores, its environment included: the parts are balanced by it.
    minutes: float


@dataclass(frozen=True, slots=True)
class Result:
    """The last run of a step."""

    step: str
    #: `passed`, `failed` (exit status other than 0), or `timed out` (the part's 60 minutes were over).
    verdict: str
    #: Abbreviated commit; `+` behind it: with uncommitted changes.
    commit: str
    #: Time of the end, UTC.
    date: str
    minutes: float
    #: The last lines of the output that count tests or name versions.
    summary: str


BREADTH_PARTS = 6
#: Scenarios of `tests.chaos --full`, in groups of about half an hour.
_CHAOS = (
    ("worker_kills", "poison", "one_key", "disk_full", "chains"),
    ("valkey_kills", "failovers", "redis_full"),
    ("bad_network", "zombies", "cancels", "rolling_restarts"),
    ("flood", "s3_trouble", "store_away", "bad_receivers", "flushall", "slow_servers"),
    ("valkey_hangs", "comings_and_goings", "split_scenes", "model_processes", "subscriptions"),
)
_PYTHON = ".venv/bin/python"

STEPS: tuple[Step, ...] = (
    Step("check", ("make", "check"), 3),
    Step("test", ("make", "test"), 12),
    *(
        Step(f"breadth-{part}", ("make", "test-breadth", f"PART={part}/{BREADTH_PARTS}"), 20)
        for part in range(1, BREADTH_PARTS + 1)
    ),
    Step("newest versions", ("make", "test-versions", "VERSIONS=newest"), 25),
    Step("lowest versions", ("make", "test-versions", "VERSIONS=lowest"), 25),
    Step("images", ("make", "image-test"), 15),
    Step("helm", ("make", "helm-test"), 5),
    Step("aws", ("make", "aws-test"), 3),
    Step("terratorch", ("make", "test-terratorch"), 15),
    Step("vllm", ("make", "test-vllm"), 45),
    *(
        Step(f"chaos-{number}", (_PYTHON, "-m", "tests.chaos", "--full", "--seed", "{seed}", *names), 30)
        for number, names in enumerate(_CHAOS, start=1)
    ),
    Step("chaos-mutants", (_PYTHON, "-m", "tests.chaos.mutants"), 20),
    Step(
        "survival",
        ("env", "PENSTOCK_FLOOD=10000", ".venv/bin/pytest", "tests/acceptance/test_survival.py",
         "tests/acceptance/test_up.py", "tests/integration/test_drop_flood.py"),
        15,
    ),
    Step("fuzz", ("make", "fuzz"), 20),
    Step("demo", ("make", "demo"), 1),
    Step("gpu-bundle", ("benchmarks/gpu_bundle.sh", "--small"), 12),
)  # fmt: skip


def parts(steps: Sequence[Step], count: int) -> list[list[Step]]:
    """Return the steps in `count` parts of about the same time, each in the order of `steps`.

    The longest step goes first, each to the part with the least to do: the same count gives the same parts.
    """
    chosen: list[list[Step]] = [[] for _ in range(count)]
    for step in sorted(steps, key=lambda step: -step.minutes):
        min(chosen, key=lambda part: sum(each.minutes for each in part)).append(step)
    return [sorted(part, key=steps.index) for part in chosen]


def part_of(text: str) -> list[Step]:
    """Return the steps of `K/N`; raises `SystemExit` for another text, or if a part would take over 60 minutes."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise SystemExit(f"nightly: PART={text}: no part; the second of eight is 2/8")
    made = parts(STEPS, count)
    longest = max(sum(step.minutes for step in part) for part in made)
    if longest * 60 > PART_S:
        raise SystemExit(f"nightly: in {count} parts, one takes {longest:.0f} minutes (limit {PART_S // 60}): use more")
    return made[number - 1]


def run(steps: Iterable[Step]) -> int:
    """Run the steps one after the other, save the result of each, and return 0 if all passed."""
    ends = time.monotonic() + PART_S
    results = []
    for step in steps:
        print(f"\n== nightly: {step.name}", flush=True)  # noqa: T201
        result = _run(step, max(1.0, ends - time.monotonic()))
        save(result)
        results.append(result)
    print("\n" + table(results))  # noqa: T201
    return 0 if all(result.verdict == "passed" for result in results) else 1


def _run(step: Step, limit_s: float) -> Result:
    commit = _commit()
    began = time.monotonic()
    seed = int(datetime.now(UTC).strftime("%j"))  # another one each day; the row shows it
    command = [word.format(seed=seed) for word in step.command]
    log = ROOT / "build" / "nightly" / f"{step.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # `tee` shows what happens; the log has the lines for the summary.
    words = ["bash", "-c", 'set -o pipefail; "$@" 2>&1 | tee "$0"', str(log), *command]
    process = subprocess.Popen(words, cwd=ROOT, start_new_session=True, env=os.environ | {"CI": "1"})
    try:
        verdict = "passed" if process.wait(limit_s) == 0 else "failed"
    except subprocess.TimeoutExpired:
        verdict = "timed out"
        _end(process)
    except KeyboardInterrupt:
        _end(process)
        raise
    date = datetime.now(UTC).isoformat(timespec="minutes")
    minutes = round((time.monotonic() - began) / 60, 1)
    return Result(step.name, verdict, commit, date, minutes, summary(log.read_text(errors="replace")))


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def _commit() -> str:
    head = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    changed = ["git", "status", "--porcelain", "--", ":!tests/nightly"]
    dirty = subprocess.run(changed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return f"{commit}+" if dirty else commit


def summary(output: str) -> str:
    """Return the counts of each pytest, the lines of chaos scenarios and of versions, shortened."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    counts = re.findall(r"^=+ (.*\d+ (?:passed|failed|error|skipped|deselected).*?) =+$", plain, re.M)
    counts += re.findall(r"^((?:\d+ \w+, )*\d+ (?:passed|failed|error|skipped)[^=\n]* in [\d.]+s.*)$", plain, re.M)
    chaos = re.findall(r"^(\w+): seed=(\d+) (jobs=\d+|BROKEN)", plain, re.M)
    mutants = re.findall(r"^.*: (ok|WRONG) \(unchanged", plain, re.M)
    versions = re.findall(r"^versions: (.*)$", plain, re.M)
    found = [*versions, *counts, *(f"{name} {jobs}" for name, _, jobs in chaos)]
    found += [f"seed {chaos[0][1]}"] if chaos else []
    found += [f"{mutants.count('ok')} of {len(mutants)} mutants caught"] if mutants else []
    text = "; ".join(found)
    return text if len(text) <= _SUMMARY else text[: _SUMMARY - 1] + "…"


def save(result: Result) -> None:
    """Write the result over the last one of its step."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{result.step.replace(' ', '-')}.json"
    path.write_text(json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def saved() -> Mapping[str, Result]:
    """Return the newest result of each step that has one, by its name."""
    texts = (path.read_text(encoding="utf-8") for path in RESULTS.glob("*.json"))
    return {result.step: result for result in (Result(**json.loads(text)) for text in texts)}


def table(results: Iterable[Result]) -> str:
    """Return the results as a table in Markdown."""
    rows = [
        f"| {each.step} | {each.verdict} | {each.commit} | {each.date[:16]} | {each.minutes} | {each.summary} |"
        for each in results
    ]
    return "\n".join(
        ("| step | result | commit | date (UTC) | minutes | |", "| --- | --- | --- | --- | ---: | --- |", *rows)
    )


def main(words: list[str]) -> int:
    """Run the command line."""
    match words:
        case ["run", part]:
            return run(part_of(part))
        case ["list", count] if count.isdigit() and int(count):
            for number, part in enumerate(parts(STEPS, int(count)), start=1):
                names = ", ".join(step.name for step in part)
                print(f"{number}/{count}  {sum(step.minutes for step in part):3.0f} min  {names}")  # noqa: T201
            return 0
        case ["table"]:
            done = saved()
            missing = Result("", "not run", "", "", 0.0, "")
            print(table(done.get(step.name, replace(missing, step=step.name)) for step in STEPS))  # noqa: T201
            return 0
        case _:
            print(__doc__, file=sys.stderr)  # noqa: T201
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
