"""Penstock beside its peers: `python -m benchmarks.peers [--only NAME ...] [--work NAME ...] [--quick]`.

Each peer is installed in an environment of its own under `--cache` (4 GB for all) and does the same work as the others,
one after the other in one run, on loopback: 8 jobs in flight (scenes: 2), one process with the model, and as many
threads of torch as the machine has processors. Then it does the work again, and the process with the model is killed
with SIGKILL when half of the jobs have ended. A server that ends is started again by this program, as systemd would. A
job is lost if it was accepted, or sent, and is not answered within the time that the work allows; no client sends a job
a second time. vLLM needs an environment of 5 GB that `infra/vllm-env.sh` makes: name it with `--vllm` or the variable
`PEERS_VLLM_ENV`. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.measuring import Lost, machine, say
from benchmarks.peers.environments import NotInstalled, default_cache, install
from benchmarks.peers.figures import Row, table
from benchmarks.peers.load import kill, measure
from benchmarks.peers.registry import PEERS, WORKS, Peer
from benchmarks.peers.serving import Place
from benchmarks.peers.works import Work, make_work


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table for each work."""
    chosen = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the peers' processes are ended on the way out
    peers = [peer for peer in PEERS if not chosen.only or peer.name in chosen.only]
    say(f"<!-- {machine()}; environments in {chosen.cache} -->")
    with tempfile.TemporaryDirectory(prefix="bench-peers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for work in chosen.work or WORKS:
            terratorch = partial(install, chosen.cache, "terratorch")
            try:
                made = make_work(folder, work, quick=chosen.quick, size_px=chosen.size, terratorch=terratorch)
            except (NotInstalled, RuntimeError) as error:
                say(f"\n**{work}** was not measured: {error}")
                continue
            rows = [run(peer, made, folder, chosen.cache, chosen.vllm) for peer in peers]
            say(f"\n{table(made.title, rows)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="peers (default: all)")
    parser.add_argument("--work", nargs="+", choices=WORKS, help="works (default: all)")
    parser.add_argument("--quick", action="store_true", help="few jobs and small scenes: shows only that all runs")
    parser.add_argument("--size", type=int, default=2048, help="size of the scenes in pixels")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder of the peers' environments")
    parser.add_argument(
        "--vllm", type=Path, default=os.environ.get("PEERS_VLLM_ENV"), help="a ready environment with vLLM"
    )
    return parser


def run(peer: Peer, work: Work, folder: Path, cache: Path, vllm: Path | None) -> Row:
    """Return a peer's row; whatever fails is its reason."""
    if reason := peer.cannot.get(work.name):
        return Row(peer.title, note=f"does not run: {reason}")
    row = Row(peer.title, note=peer.notes.get(work.name, ""))
    try:
        python = _python(peer, cache, vllm)
        place = Path(tempfile.mkdtemp(prefix=f"{peer.name}-", dir=folder))
        with peer.serve(Place(python, work, place)) as service:
            row = replace(row, measured=measure(service, work))
            say(f"<!-- {peer.name}, {work.name}: {row.measured.rate:.3g} jobs/s, load {os.getloadavg()[0]:.1f} -->")
            row = replace(row, killed=kill(service, work))
    except NotInstalled as error:
        return replace(row, note=f"not installed: {error}")
    except Lost as error:
        return replace(row, note=f"{row.note}; {error}".lstrip("; "))
    except Exception as error:  # one peer's failure must not end the others
        return replace(row, note=f"{row.note}; did not run: {type(error).__name__}: {str(error)[:300]}".lstrip("; "))
    return row


def _python(peer: Peer, cache: Path, vllm: Path | None) -> Path:
    if peer.name == "vllm":
        if vllm is None or not (vllm / "bin" / "vllm").exists():
            raise NotInstalled("infra/vllm-env.sh makes its environment (5 GB); name it with --vllm")
        return Path(vllm).absolute() / "bin" / "python"
    return Path(sys.executable) if peer.environment is None else install(cache, peer.environment)


if __name__ == "__main__":
    main(sys.argv[1:])
