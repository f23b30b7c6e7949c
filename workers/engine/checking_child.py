"""The process that checks models of its environment, as their runners do.

`python -P -m penstock.workers.engine.checking_child DESCRIPTOR` reads records from a connection of
`multiprocessing`, and answers each with a sentence, or with nothing where nothing is wrong. It ends when the other end
is closed.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from penstock.errors import PenstockError
from penstock.models import Model
from penstock.observation.log import configure
from penstock.workers.engine.runners import Runners


def main(descriptor: int) -> None:
    """Check what comes, until nobody asks any more."""
    configure("warning")
    runners = Runners.installed()
    with Connection(descriptor) as connection:
        while True:
            try:
                model = Model.model_validate_json(connection.recv_bytes())
            except EOFError:  # nobody asks any more
                return
            try:
                runners.check_here(model)
                connection.send_bytes(b"")
            except PenstockError as error:
                connection.send_bytes(error.detail.encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
