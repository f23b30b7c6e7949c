"""Devices of this machine, and the share of each worker."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.up.devices import Share, share_of, visible_devices

#: A machine with a whole GPU and one in two instances; the ids are made up.
LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-aaaa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22222222-bbbb)
  MIG 3g.40gb     Device  0: (UUID: MIG-33333333-cccc)
  MIG 3g.40gb     Device  1: (UUID: MIG-44444444-dddd)
"""


@pytest.mark.parametrize(
    ("named", "found"),
    [
        (None, ("GPU-11111111-aaaa", "MIG-33333333-cccc", "MIG-44444444-dddd")),
        ("", ()),
        ("-1", ()),
        ("1,0", ("1", "0")),
        ("0, 2 ,-1,3", ("0", "2")),
        ("GPU-22222222-bbbb", ("GPU-22222222-bbbb",)),
        ("1,1", ("1",)),
    ],
)
def test_the_variable_counts_before_the_list(named: str | None, found: tuple[str, ...]) -> None:
    environ = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert visible_devices(environ, lambda: LISTED) == found


def test_a_machine_without_a_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert visible_devices({}) == ()


@given(st.integers(0, 9), st.integers(1, 40))
def test_the_shares_of_a_device_make_it_whole_and_no_device_has_two_workers_more(devices: int, most: int) -> None:
    names = tuple(map(str, range(devices)))
    shares = [share_of(number, names, most) for number in range(1, most + 1)]
    parts = {share.device: Fraction(0) for share in shares}
    for share in shares:
        parts[share.device] += Fraction(1, share.workers)
    assert set(parts.values()) == {1}
    counts = Counter(share.device for share in shares)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len(counts) == (min(devices, most) or 1)


def test_without_devices_workers_share_the_machine() -> None:
    assert share_of(2, (), 4) == Share(None, 4)
