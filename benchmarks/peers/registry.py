"""The peers: their environments, the works that they do, and what differs in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from benchmarks.peers import (
    bentoml,
    celery_tasks,
    litserve,
    penstock,
    ray_queue,
    ray_serve,
    runpod,
    tiled_inference,
    vllm,
)
from benchmarks.peers.figures import BASE
from benchmarks.peers.load import Service
from benchmarks.peers.serving import Place

WORKS = ("noop", "picture", "csmask", "prithvi")
SCENES = ("csmask", "prithvi")


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer in the tables."""

    #: Its name for `--only`.
    name: str
    title: str
    serve: Callable[[Place], AbstractContextManager[Service]]
    #: Its environment in `pins.toml`; None: this one, or one that an option names.
    environment: str | None = None
    #: The reason why it does not do a work, by the work's name.
    cannot: Mapping[str, str] = field(default_factory=dict)
    #: Differences to the others' work, by the work's name.
    notes: Mapping[str, str] = field(default_factory=dict)


SCENES_ONLY = dict.fromkeys(("noop", "picture"), "a function for scenes")
ONE_BY_ONE = dict.fromkeys(SCENES, "a script, one scene after the other")
NO_MODEL = dict.fromkeys(("noop", "picture", "csmask"), "it serves models of TerraTorch, by a plugin")
BATCHES = {"picture": "batches of 8"}
BY_BATCHES = {"picture": "celery-batches, 8 a batch"}
IN_THE_ANSWER = {"prithvi": "the map comes in the answer, as a GeoTIFF in Base64"}

PEERS = (
    Peer("penstock-redis", BASE, penstock.serve_redis),
    Peer("penstock-manifest", "Penstock, durability manifest", penstock.serve_manifest),
    Peer("litserve", "LitServe", litserve.serve, "litserve", notes=BATCHES),
    Peer("ray", "Ray Serve", ray_serve.serve, "ray", notes=BATCHES),
    Peer("ray-queue", "Ray Serve, asynchronous inference", ray_queue.serve, "ray"),
    Peer("bentoml", "BentoML task", bentoml.serve, "bentoml"),
    Peer("runpod", "RunPod, local worker", runpod.serve, "runpod"),
    Peer("celery", "Celery", celery_tasks.serve, "celery", notes=BY_BATCHES),
    Peer("vllm", "vLLM `/pooling` with TerraTorch", vllm.serve, cannot=NO_MODEL, notes=IN_THE_ANSWER),
    Peer(
        "tiled-inference", "TerraTorch `tiled_inference`", tiled_inference.serve, "terratorch", SCENES_ONLY, ONE_BY_ONE
    ),
)
