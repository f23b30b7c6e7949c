from __future__ import annotations

import pytest

from penstock.cli.processes import unread_variables
from penstock.config import Settings


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PENSTOCK_MAX_QUED", "nothing reads PENSTOCK_MAX_QUED (did you mean PENSTOCK_MAX_QUEUED?)"),
        ("penstock_prot", "nothing reads penstock_prot (did you mean PENSTOCK_PORT?)"),
        ("PENSTOCK_SCALLING__MAX", "nothing reads PENSTOCK_SCALLING__MAX (did you mean PENSTOCK_SCALING?)"),
        ("PENSTOCK_XYZZY", "nothing reads PENSTOCK_XYZZY"),
    ],
)
def test_a_variable_that_nothing_reads_is_named_with_the_nearest_one(name: str, said: str) -> None:
    assert list(unread_variables(["HOME", name])) == [said]


def test_variables_of_settings_and_of_the_command_line_are_read() -> None:
    settings = [f"PENSTOCK_{name.upper()}" for name in Settings.model_fields]
    assert not list(
        unread_variables([*settings, "PENSTOCK_S3__REGION", "penstock_port", "PENSTOCK_URL", "PENSTOCK_API_KEY"])
    )
    assert not list(unread_variables(["PENSTOCK_CONFIG", "HOME", "_PENSTOCK_X"]))
