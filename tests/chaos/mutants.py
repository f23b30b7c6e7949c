"""Does the attack notice? Each mutant lacks one thing that the promise stands on, and its tests must go red.

`python -m tests.chaos.mutants [NAME ...]` works on copies of the tree in a temporary folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.processes import ROOT

#: Files that a copy needs.
_TREE = ("src", "api", "workers", "processors", "storage", "tests", "benchmarks", "pyproject.toml")
#: A mutant's jobs never end: this is how long the tests wait for them.
_PATIENCE_S = 20
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to one file, and the tests that must notice."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def _chaos(file: str, scenario: str) -> str:
    return f"tests/chaos/{file}.py::test_no_job_is_lost_doubled_or_changed_under[{scenario}]"


def _without_manifests(scenario: str) -> str:
    return f"tests/chaos/test_stores.py::test_without_manifests_neither_under[{scenario}]"


MUTANTS = (
    Mutant(
        "no fence check",
        "storage/redis/lua/common.lua",
        "if job.fence ~= fence then return nil, 'fenced' end",
        "",
        (_without_manifests("zombies"),),
    ),
    Mutant(
        "no sweeper",
        "storage/redis/lua/sweep.lua",
        "each('leases', { running = true }",
        "each('never', { running = true }",
        (_without_manifests("worker_kills"),),
    ),
    Mutant(
        "no outbox write",
        "storage/redis/lua/common.lua",
        "announce(job, 'job.' .. state, now)",
        "",
        (_chaos("test_processes", "poison"),),
    ),
    Mutant(
        "no request manifest",
        "storage/journal/journal.py",
        "yield from _objects(lambda objects: manifests.put_manifest(objects, manifest))",
        "pass",
        (_chaos("test_redis", "flushall"),),
    ),
    Mutant(
        "no outcome manifest",
        "storage/journal/manifests.py",
        'objects.put_bytes(_outcome(key), proposal.encode(), content_type="application/json", if_absent=True)',
        "pass",
        (_chaos("test_redis", "flushall"),),
    ),
    Mutant(
        "no job whose parts have ended comes back",
        "storage/redis/lua/common.lua",
        "  join_parts(parent, now)\nend",
        "end",
        (_chaos("test_parts", "split_scenes"),),
    ),
    Mutant(
        "batches end before their lines are through",
        "workers/keeper/batch_completion.py",
        "elif not batch.reserved and (batch.closing or batch.expanded):",
        "elif not batch.reserved:",
        ("tests/integration/test_batch_survival.py::test_no_line_is_lost_or_doubled_however_keepers_die",),
    ),
    Mutant(
        "usage counts with the proposal of an end and with its commit",
        "storage/redis/lua/common.lua",
        "record.state, record.phase, record.completed_us, record.name = state, 'waiting', int(now), nil",
        "record.state, record.phase, record.completed_us, record.name = state, 'waiting', int(now), nil\n"
        "  count_usage(job.tenant, job.model, state, now, record)",
        (_chaos("test_processes", "worker_kills"),),
    ),
    Mutant(
        "usage of a repeated commit counts again",
        "storage/redis/lua/commit.lua",
        "if job and has_ended(job) then return",
        "if job and has_ended(job) then count_usage(tenant, job.model, job.state, job.completed_us, job) return",
        (_chaos("test_redis", "bad_network"),),
    ),
    Mutant(
        "usage of restored jobs does not count",
        "storage/redis/lua/common.lua",
        "  count_usage(job.tenant, job.model, state, now, job)\n",
        "  if before then count_usage(job.tenant, job.model, state, now, job) end\n",
        (_chaos("test_redis", "flushall"),),
    ),
    Mutant(
        "no limit to a receiver's lane",
        "storage/redis/lua/deliver.lua",
        "if redis.call('ZCARD', busy) >= most then",
        "if false then",
        ("tests/integration/test_deliverer.py::test_a_tarpit_holds_some_threads_and_nobody_else",),
    ),
    Mutant(
        "random ids of subscriptions' jobs",
        "storage/journal/subscriptions.py",
        'str(uuid.uuid5(_NAMESPACE, f"{self.uid} {item} {version}"))',
        "str(uuid.uuid4())",
        (_chaos("test_catalogues", "subscriptions"),),
    ),
    Mutant(
        "no look-back",
        "workers/keeper/subscription_plan.py",
        "progress.cursor_s - subscription.look_back_s",
        "progress.cursor_s",
        (_chaos("test_catalogues", "subscriptions"),),
    ),
    Mutant(
        "followers do not wait",
        "storage/redis/lua/chain.lua",
        "elseif state ~= 'succeeded' then",
        "elseif false then",
        (_chaos("test_chains", "chains"),),
    ),
    Mutant(
        "the end of a job judges no follower",
        "storage/redis/lua/chain.lua",
        "if follower then judge_again(follower, now) end",
        "",
        (_chaos("test_chains", "chains"),),
    ),
)


def main(names: list[str]) -> int:
    """Return 0 when the unchanged tree is green and every mutant is red."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    wrong = 0
    for mutant in chosen:
        green, red = _passes(None, mutant.tests), not _passes(mutant, mutant.tests)
        verdict = "ok" if green and red else "WRONG"
        wrong += verdict != "ok"
        words = f"unchanged {'green' if green else 'red'}, mutant {'red' if red else 'green'}"
        sys.stdout.write(f"{mutant.name}: {verdict} ({words}; {' '.join(mutant.tests)})\n")
        sys.stdout.flush()
    return 1 if wrong else 0


def _passes(mutant: Mutant | None, tests: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        copy_tree(root)
        if mutant is not None:
            _change(root / mutant.path, mutant.old, mutant.new)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{root / 'src'}:{root}",
            # The unchanged tree may take its time.
            "CHAOS_PATIENCE_S": "120" if mutant is None else str(_PATIENCE_S),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(
            command, cwd=root, env=environment, timeout=_TIMEOUT_S, check=False, capture_output=True, text=True
        )
        # 1 = tests failed; anything else but 0 is no verdict about the code.
        if done.returncode not in (0, 1) or "skipped" in done.stdout:
            raise RuntimeError(
                f"pytest gave no verdict ({done.returncode}):\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
            )
        return done.returncode == 0


def copy_tree(root: Path) -> None:
    """Copy what the tests need into an empty folder."""
    for name in _TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, root / name)


def _change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if text.count(old) != 1:
        raise RuntimeError(f"{path.name} holds {old!r} {text.count(old)} times: the mutant must be written anew")
    path.write_text(text.replace(old, new))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
