"""The wait of a pass's threads for each other on a CPU: a setting of OpenMP (decision 103)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

_POLICY, _PASSIVE = "OMP_WAIT_POLICY", "passive"
#: The variables with which a user says how threads wait.
_CHOICES = (_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
#: Says to a program that this one has set the policy itself. Not read as a setting of Penstock's.
_OURS = "_PENSTOCK_OMP_WAIT_POLICY"


def let_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Have the threads of a pass sleep while they wait for each other, unless the environment says how they wait.

    OpenMP reads this when torch is imported. A thread that spins takes its processor from the API, Redis and IO
    processes, and while another thread waits for a processor, it spins for nothing.
    """
    if not any(name in environment for name in _CHOICES):
        environment[_POLICY] = environment[_OURS] = _PASSIVE


def as_given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment without what `let_threads_sleep` has set in it."""
    ours = {_OURS, _POLICY} if _OURS in environment else set()
    return {name: value for name, value in environment.items() if name not in ours}
