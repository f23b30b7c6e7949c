"""The process that checks models of its environment, as their runners do.

`python -P -m penstock.workers.engine.checking_child DESCRIPTOR` answers each record with a sentence, or with an empty
one where nothing is wrong. It ends when the other end is closed.
"""

from __future__ import annotations

import socket
import sys
from contextlib import closing, suppress

from penstock.errors import PenstockError
from penstock.functions.wire import Closed, Wire
from penstock.models import Model
from penstock.observation.log import configure
from penstock.workers.engine.runners import Runners


def main(descriptor: int) -> None:
    """Check what comes, until nobody asks any more."""
    configure("warning")
    runners = Runners.installed()
    with closing(Wire(socket.socket(fileno=descriptor))) as wire, suppress(Closed):
        wire.receive()  # `init`
        while True:
            wire.send("checked", _problem(runners, Model.model_validate(wire.receive()["value"])))


def _problem(runners: Runners, model: Model) -> str:
    try:
        runners.check_here(model)
    except PenstockError as error:
        return error.detail
    return ""


if __name__ == "__main__":
    main(int(sys.argv[1]))
