"""Token rates of eight concurrent texts: shared passes compared with one cache per text. `python -m benchmarks.texts`.

Both methods alternate in one run, with the engine, the same network and the same prompts. The network has random
weights, so that no file is needed; every text has the same number of tokens, or (`--uneven`) from a quarter to four
times as many, so that texts end one after the other.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import structlog
import torch
import transformers

from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners

#: Prompt lengths: 20 to 69 tokens.
JOBS, SHORTEST, LONGER = 8, 20, 7
#: Width and layers by name: weights that fit into the processor's cache, and weights that do not.
SIZES = {"1 million": (128, 4), "90 million": (768, 12)}
HOW = {"a cache for each text": {}, "shared passes": {"batching": "continuous"}}


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts", description=__doc__)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens per text")
    parser.add_argument("--uneven", action="store_true", help="answers of --tokens / 4 tokens up to --tokens * 4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch; several threads wait for each other on a busy machine"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(chosen.threads)
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where = f"{chosen.device}, {chosen.dtype}, threads: {chosen.threads}"
    say(f"| {where} | {' | '.join(HOW)} | ratio | by processor time |")
    say("| --- | --- | --- | --- | --- |")
    for name, size in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="bench-texts-") as folder:
            for line in rows(name, _network(Path(folder), *size), chosen):
                say(line)


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds per token: wall clock, and processor time, which depends less on other load."""

    wall_s: float
    processor_s: float

    def __str__(self) -> str:
        return f"{1 / self.wall_s:.0f} tokens/s, {self.processor_s * 1e3:.1f} ms"


def rows(name: str, source: Path, chosen: argparse.Namespace) -> Iterator[str]:
    """Yield a network's lines: medians of the rounds after a first round that is discarded."""
    models = {how: _model(source, options, chosen) for how, options in HOW.items()}
    with closing(BatchingEngine(Runners.installed())) as engine:
        for jobs in (JOBS, 1):
            taken: dict[str, list[Taken]] = {how: [] for how in HOW}
            for _ in range(1 + chosen.rounds):
                for how, model in models.items():
                    taken[how].append(_taken(engine, model, lengths(jobs, chosen.tokens, uneven=chosen.uneven)))
            alone, shared = (_median(rounds[1:]) for rounds in taken.values())
            ratios = f"{alone.wall_s / shared.wall_s:.1f} | {alone.processor_s / shared.processor_s:.1f}"
            counts = lengths(jobs, chosen.tokens, uneven=chosen.uneven)
            each = f"each of {counts[0]}" if len(set(counts)) == 1 else f"of {counts[0]} to {counts[-1]}"
            what = f"{name} parameters, jobs at a time: {jobs}, {each} tokens"
            yield f"| {what} | {alone} | {shared} | {ratios} |"


def _median(rounds: Sequence[Taken]) -> Taken:
    return Taken(median(each.wall_s for each in rounds), median(each.processor_s for each in rounds))


def lengths(jobs: int, tokens: int, *, uneven: bool) -> Sequence[int]:
    """Return each job's number of new tokens: all equal, or from a quarter of `tokens` to four times as many."""
    if not uneven or jobs == 1:
        return [tokens] * jobs
    return [round(tokens / 4 * 16 ** (at / (jobs - 1))) for at in range(jobs)]


def _taken(engine: BatchingEngine, model: Model, counts: Sequence[int]) -> Taken:
    def job(at: int) -> int:
        count = counts[at]
        ids = np.arange(3, 3 + SHORTEST + LONGER * at, dtype=np.int64)
        outputs = engine.run(model, iter([Prompt({"input_ids": ids, "max_new_tokens": count})]), check=lambda: None)
        return [len(output.data["token_ids"]) for output in outputs][-1]

    with ThreadPoolExecutor(len(counts)) as pool:
        begun, spent = time.perf_counter(), time.process_time()
        made = sum(pool.map(job, range(len(counts))))
        return Taken((time.perf_counter() - begun) / made, (time.process_time() - spent) / made)


def _model(source: Path, options: dict[str, str], chosen: argparse.Namespace) -> Model:
    return Model(
        name=f"texts-{len(options)}",
        title="Texts",
        runner="transformers",
        processor="text-generation",
        source=str(source),
        revision="1",
        device=chosen.device,
        dtype=chosen.dtype,
        max_batch=JOBS,
        options=options,
    )


def _network(folder: Path, width: int, layers: int) -> Path:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=4000,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=1024,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def say(line: str) -> None:
    """Print a line immediately."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
