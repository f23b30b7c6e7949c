"""`penstock models tune`: measures settings of a model on this machine and recommends the best."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import err, out, print_json, table
from penstock.cli.options import JOB_FAILED, AsJson, Catalogues
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.local.tuning import Candidate, Space, Trial
    from penstock.models import Model

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
#: Place of each setting in a record. Only some runners have threads in it.
_FIELDS = {"tile_px": "options.tile_px", "max_batch": "max_batch", "dtype": "dtype", "threads": "options.threads"}

Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="SIZE",
        help="Most memory of the process, or of the GPU, such as 4GB [half of the machine's, or 0.9 of the GPU's].",
    ),
]  # fmt: skip


def tune(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or alias.")],
    memory: Memory = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds to measure each row.")] = 5.0,
    write: Annotated[bool, typer.Option("--write", help="Write the best settings into the record's file.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before results change.")] = False,
    catalogue: Catalogues = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model's tile size, batch, threads and number type on this machine, and recommend the fastest in memory.

    Each row is measured in a process of its own, with copies of one prompt of random numbers. bfloat16 is measured only
    where the processor or GPU has it. Nothing is changed without --write. Tile size, number type and threads are part
    of a result's bits: --write asks before it changes one. Only a record of the runner `torch` has threads: with
    fewer than the processors, prompts are computed side by side. Exit code 1 if no row fits.
    """
    from penstock.local.trials import has_threads, space_of
    from penstock.local.tuning import recommend

    record, paths = _record(name, catalogue)
    target = _target(record.name, paths) if write else None
    limit_bytes = _limit_bytes(record, memory)
    space = space_of(record)
    trials = _measured(record, space, limit_bytes, seconds, quiet=as_json)
    best = recommend(trials, limit_bytes)
    if as_json:
        print_json({
            "model": record.name, "memory_bytes": limit_bytes, "unit": _unit(space.start),
            "trials": [asdict(trial) for trial in trials], "best": best and asdict(best.candidate),
        })  # fmt: skip
    else:
        out.print(_rows(trials, best, limit_bytes))
    if best is None:
        err.print(f"no row was measured within {_gb(limit_bytes)}")
        raise typer.Exit(JOB_FAILED)
    in_record = set(_FIELDS) - (set() if has_threads(record) else {"threads"})
    _recommend(space.start, best, trials[0], in_record)
    if target is not None:
        _write(record.name, target, space.start, best.candidate, in_record, yes=yes)


def size_bytes(text: str) -> int:
    """Return the bytes of a size such as `4GB`, `512 MiB` or `2g`, in powers of 1024; raise `ConfigError`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"{text!r} is no size of memory; write for example 4GB or 512MB")
    return int(float(found[1]) * 1024 ** _POWERS[found[2].lower()])


def _record(name: str, catalogue: Sequence[Path] | None) -> tuple[Model, tuple[Path, ...]]:
    """Return a model's record with a local source, and the files of the catalogue, the one that counts last."""
    from penstock.config import load_settings
    from penstock.local.installation import Installation, processing_here
    from penstock.observation.log import configure

    configure("error", as_text=True)
    settings = load_settings()
    installation = Installation(settings, processing_here(settings, isolated=False), catalogue=catalogue or ())
    record, _ = installation.servable(name)
    return record, (*settings.models, *(catalogue or ()))


def _target(name: str, paths: Sequence[Path]) -> Path:
    from penstock.local.ready import file_of

    return file_of(name, paths)


def _limit_bytes(record: Model, memory: str | None) -> int:
    from penstock.workers.engine.memory import budget_bytes

    if memory is not None:
        return size_bytes(memory)
    if record.device != "cpu":
        import torch  # noqa: F401  (`budget_bytes` asks it for the GPU's memory once it is imported)
    return budget_bytes()


def _measured(
    record: Model, space: Space, limit_bytes: int, seconds: float, *, quiet: bool
) -> tuple[Trial, ...]:  # fmt: skip
    """Run the search, with a line on standard error for each row."""
    from penstock.local.trials import measure
    from penstock.local.tuning import search

    steps = search(space, limit_bytes)
    candidate = next(steps)
    while True:
        with err.status(f"measuring {_described(candidate)}"):
            trial = measure(record, candidate, seconds=seconds, memory_bytes=limit_bytes)
        if not quiet:
            err.print(f"{_described(candidate)}: {trial.problem or _speed(trial)}", highlight=False, markup=False)
        try:
            candidate = steps.send(trial)
        except StopIteration as end:
            trials: tuple[Trial, ...] = end.value
            return trials


def _rows(trials: Sequence[Trial], best: Trial | None, limit_bytes: int) -> Any:
    rows = table("", "tile", "batch", "threads", "dtype", "speed", "of the record's", "peak memory", "")
    base = trials[0].per_s
    for trial in trials:
        each, mark = trial.candidate, "best" if trial is best else ""
        share = f"{trial.per_s / base:.2f}" if base and not trial.problem else ""
        note = trial.problem or ("over the memory" if trial.peak_bytes > limit_bytes else "")
        if not note and trial.batch < each.max_batch:
            note = f"the runner takes {trial.batch} at a time"
        tile = "-" if each.tile_px is None else f"{each.tile_px} px"
        peak = _gb(trial.peak_bytes) if trial.peak_bytes else ""
        speed = "" if trial.problem else _speed(trial)
        rows.add_row(mark, tile, str(each.max_batch), str(each.threads), each.dtype, speed, share, peak, note)
    return rows


def _recommend(start: Candidate, best: Trial, first: Trial, in_record: Set[str]) -> None:
    from penstock.local.tuning import changes, changes_results

    differ = changes(start, best.candidate)
    if not differ:
        err.print("the record's own settings are the best that were measured, or as good as the best")
        return
    said = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in differ.items())
    times = f": {best.per_s / first.per_s:.2f} times as fast" if first.per_s else ""
    err.print(f"recommended: {said}{times}", highlight=False, markup=False)
    if changes_results(differ):
        err.print(
            "Tile size, number type and threads are part of a result's bits: results will differ from those of today."
        )
    if "threads" in differ and "threads" not in in_record:
        err.print(f"Threads are set in the worker's environment: OMP_NUM_THREADS={best.candidate.threads}")


def _write(name: str, path: Path, start: Candidate, best: Candidate, in_record: Set[str], *, yes: bool) -> None:
    from penstock.local.ready import write
    from penstock.local.tuning import changes, changes_results

    values = {_FIELDS[key]: new for key, (_, new) in changes(start, best).items() if key in in_record}
    if not values:
        err.print("nothing was written: the record has these settings")
        return
    said = ", ".join(f"{key} = {value}" for key, value in values.items())
    if changes_results(key.removeprefix("options.") for key in values) and not yes:
        typer.confirm(f"Write {said} into {path}? Results will have other bits.", abort=True, err=True)
    write(path, name, values)
    err.print(f"wrote {said} into {path}; give the record another revision if a cache holds results", highlight=False)


def _described(candidate: Candidate) -> str:
    tile = "" if candidate.tile_px is None else f"tile {candidate.tile_px} px, "
    threads = "1 thread" if candidate.threads == 1 else f"{candidate.threads} threads"
    return f"{tile}batch {candidate.max_batch}, {threads}, {candidate.dtype}"


def _unit(candidate: Candidate) -> str:
    return "prompts/s" if candidate.tile_px is None else "pixels/s"


def _speed(trial: Trial) -> str:
    if trial.candidate.tile_px is None:
        return f"{trial.per_s:.3g} prompts/s"
    return f"{trial.per_s / 1e6:.3g} megapixels/s"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
