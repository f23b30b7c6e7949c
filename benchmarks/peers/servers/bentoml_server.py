"""BentoML with a task: `bentoml serve bentoml_server:Peer`."""

from __future__ import annotations

import os
from typing import Any

import bentoml
from work import Work


@bentoml.service(
    workers=1,
    traffic={"timeout": int(os.environ.get("PEER_PATIENCE_S", "300"))},
    logging={"access": {"enabled": False}},
)
class Peer:
    """One worker with the model."""

    def __init__(self) -> None:
        """Load the model."""
        self.work = Work()

    @bentoml.task
    def job(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one job."""
        return self.work.run([order])[0]
