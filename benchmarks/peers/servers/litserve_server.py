"""LitServe with one worker: `litserve_server.py PORT BATCH PATIENCE_S`."""

from __future__ import annotations

import sys
from typing import Any

import litserve
from work import Work


class Api(litserve.LitAPI):
    """One process with the model; jobs that wait share a batch."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        """Load the model."""
        self.work = Work()

    def predict(self, inputs: Any) -> Any:
        """Run a job, or the jobs of a batch."""
        return self.work.run(inputs) if isinstance(inputs, list) else self.work.run([inputs])[0]

    def batch(self, inputs: list[Any]) -> list[Any]:
        """Return the jobs as they are: the default would stack arrays."""
        return inputs

    def unbatch(self, output: list[Any]) -> list[Any]:
        """Return the answers as they are."""
        return output


if __name__ == "__main__":
    port, batch, patience_s = map(int, sys.argv[1:])
    api = Api(max_batch_size=batch, batch_timeout=0.005 if batch > 1 else 0.0)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=patience_s, restart_workers=True)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)
