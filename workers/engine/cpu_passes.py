"""Forward passes on a CPU: sets variables that OpenMP and torch read when torch is imported (decision 112)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

_THREADS = "OMP_NUM_THREADS"
_POLICY = "OMP_WAIT_POLICY"
#: The variables by which a user sets how threads wait.
_WAITS = (_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
#: Variable that names the variables set by Penstock, for the programs that it starts. It is no setting of Penstock's.
_OURS = "_PENSTOCK_OWN_VARIABLES"


def let_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Have the threads of a pass sleep while they wait for each other, unless the environment says how they wait.

    A thread that spins takes its processor from the API, Redis and IO processes, and while another thread waits for a
    processor, it spins for nothing.
    """
    if not any(name in environment for name in _WAITS):
        _set(environment, _POLICY, "passive")


def use_huge_pages(environment: MutableMapping[str, str]) -> None:
    """Have torch ask the kernel for pages of 2 MiB for tensors of this size and more, unless the environment says it.

    The kernel maps and clears memory page by page when it is first used, for each tensor anew. Results do not change.
    """
    if _HUGE_PAGES not in environment:
        _set(environment, _HUGE_PAGES, "1")


def keep_to_cores(environment: MutableMapping[str, str], count: int, physical: int) -> None:
    """Have a pass take `count` threads where torch would take more, unless the environment says it.

    Torch takes one for each of the `physical` cores of its affinity. Where control groups limit the processor time, so
    many threads use it up at once, and all stand still until the next period.
    """
    if not environment.get(_THREADS) and count < physical:
        _set(environment, _THREADS, str(count))


def as_given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment without what these functions have set in it."""
    ours = {_OURS, *environment.get(_OURS, "").split()}
    return {name: value for name, value in environment.items() if name not in ours}


def _set(environment: MutableMapping[str, str], name: str, value: str) -> None:
    environment[name] = value
    environment[_OURS] = " ".join([*environment.get(_OURS, "").split(), name])
