"""RunPod's local worker: `runpod_server.py --rp_serve_api --rp_api_host 127.0.0.1 --rp_api_port PORT`."""

from __future__ import annotations

from typing import Any

import runpod
from work import Work

work = Work()


def handler(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job."""
    return work.run([job["input"]])[0]


if __name__ == "__main__":
    runpod.serverless.start({"handler": handler})
