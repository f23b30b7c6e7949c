"""The processor time of a decode is bounded where a process may be ended, and only there."""

from __future__ import annotations

import signal
import subprocess
import sys

from penstock.processors.decoding import BASE_S, BYTE_S, PIXEL_S, allowed_s, bounded, decoding

#: A decode whose time is over at once, then much work.
SLOW = (
    "from penstock.processors.decoding import *\n"
    "import penstock.processors.decoding as d, time\n"
    "d.enable()\n"
    "def work(s):\n"
    "    ends = time.process_time() + s\n"
    "    while time.process_time() < ends: pass\n"
    "def short(s): return decoding(pixels=int((s - BASE_S) / PIXEL_S))\n"
)


def python(script: str) -> int:
    done = subprocess.run([sys.executable, "-c", SLOW + script], capture_output=True, timeout=60, check=False)
    return done.returncode


def test_larger_files_have_more_time() -> None:
    assert allowed_s() == BASE_S
    assert allowed_s(pixels=10**6, size_bytes=10**6) == BASE_S + 10**6 * (PIXEL_S + BYTE_S)


def test_a_process_that_decodes_for_too_long_is_ended() -> None:
    assert python("with short(0.05): work(5)") == -signal.SIGPROF


def test_time_outside_of_decodes_does_not_count() -> None:
    assert python("with short(0.05): pass\nwork(0.3)\nwith short(0.05): pass\nprint('done')") == 0


def test_the_first_of_several_decodes_that_is_late_counts() -> None:
    assert python("with short(0.1):\n    with decoding(): pass\n    work(5)") == -signal.SIGPROF
    assert python("with decoding():\n    with short(0.05): pass\n    work(0.3)") == 0


def test_in_a_thread_of_the_users_own_process_nothing_is_bounded() -> None:
    before = signal.getitimer(signal.ITIMER_PROF)
    with decoding(pixels=-(10**9)):
        assert signal.getitimer(signal.ITIMER_PROF) == before == (0.0, 0.0)


def test_each_part_of_a_recording_has_its_own_time() -> None:
    assert list(bounded(iter([1, 2, 3]), pixels=10)) == [1, 2, 3]
    script = "for _ in bounded((work(0.04) or n for n in range(8)), pixels=int((0.2 - BASE_S) / PIXEL_S)): pass"
    assert python(script) == 0
