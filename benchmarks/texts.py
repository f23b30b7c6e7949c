"""How fast eight jobs' texts grow together: shared passes beside a cache for each text. `python -m benchmarks.texts`.

The two take turns in one run, through the engine, by the same network and prompts. The network has random weights, so
that no file is needed: what its tokens say does not matter, and every text has the same number of them.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np
import structlog
import torch
import transformers

from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import FACTORIES

#: Prompts have 20 to 69 tokens.
JOBS, SHORTEST, LONGER = 8, 20, 7
#: Sizes by name: width, layers. One whose weights fit into a processor's cache, and one whose do not.
SIZES = {"1 million": (128, 4), "90 million": (768, 12)}
HOW = {"a cache for each text": {}, "shared passes": {"batching": "continuous"}}


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts", description=__doc__)
    parser.add_argument("--tokens", type=int, default=64, help="new ones of each text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    say(f"| {JOBS} jobs on {chosen.device}, {chosen.dtype} | {' | '.join(HOW)} | ratio | one job: ratio |")
    say("| --- | --- | --- | --- | --- |")
    for name, size in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="bench-texts-") as folder:
            say(row(name, _network(Path(folder), *size), chosen))


def row(name: str, source: Path, chosen: argparse.Namespace) -> str:
    """Return a network's line: tokens a second, medians of the rounds, after one that nobody counts."""
    models = {how: _model(source, options, chosen) for how, options in HOW.items()}
    with closing(BatchingEngine(FACTORIES)) as engine:
        many, one = ({how: list[float]() for how in HOW} for _ in range(2))
        for _ in range(1 + chosen.rounds):
            for how, model in models.items():
                many[how].append(_tokens_per_s(engine, model, JOBS, chosen.tokens))
                one[how].append(_tokens_per_s(engine, model, 1, chosen.tokens))
    alone, shared = (median(many[how][1:]) for how in HOW)
    single = [median(one[how][1:]) for how in HOW]
    figures = f"{alone:.0f} tokens/s | {shared:.0f} tokens/s | {shared / alone:.1f} | {single[1] / single[0]:.2f}"
    return f"| a Llama of {name} parameters, {chosen.tokens} tokens each | {figures} |"


def _tokens_per_s(engine: BatchingEngine, model: Model, jobs: int, count: int) -> float:
    def job(at: int) -> int:
        ids = np.arange(3, 3 + SHORTEST + LONGER * at, dtype=np.int64)
        outputs = engine.run(model, iter([Prompt({"input_ids": ids, "max_new_tokens": count})]), check=lambda: None)
        return [len(output.data["token_ids"]) for output in outputs][-1]

    with ThreadPoolExecutor(jobs) as pool:
        begun = time.perf_counter()
        made = sum(pool.map(job, range(jobs)))
        return made / (time.perf_counter() - begun)


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
    """Print at once."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
