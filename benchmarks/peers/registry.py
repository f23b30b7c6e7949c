"""The peers: their environments, the works that they do, and what differs in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from benchmarks.peers import celery_tasks, http_servers, penstock, scripts
from benchmarks.peers.figures import BASE
from benchmarks.peers.load import Service
from benchmarks.peers.serving import Place

SCENES = ("csmask", "convolutions", "prithvi")
WORKS = ("noop", "picture", *SCENES)


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
NO_MODEL = dict.fromkeys(("noop", "picture", "csmask", "convolutions"), "it serves models of TerraTorch, by a plugin")
BATCHES = {"picture": "batches of 8"}
BY_BATCHES = {"picture": "celery-batches, 8 a batch"}
IN_THE_ANSWER = {"prithvi": "the map comes in the answer, as a GeoTIFF in Base64"}

PEERS = (
    Peer("penstock-redis", BASE, penstock.serve_redis),
    Peer("penstock-manifest", "Penstock, durability manifest", penstock.serve_manifest),
    Peer("litserve", "LitServe", http_servers.litserve, "litserve", notes=BATCHES),
    Peer("ray", "Ray Serve", http_servers.ray_serve, "ray", notes=BATCHES),
    Peer("ray-queue", "Ray Serve, asynchronous inference", http_servers.ray_queue, "ray"),
    Peer("bentoml", "BentoML task", http_servers.bentoml, "bentoml"),
    Peer("runpod", "RunPod, local worker", http_servers.runpod, "runpod"),
    Peer("celery", "Celery", celery_tasks.serve, "celery", notes=BY_BATCHES),
    Peer("vllm", "vLLM `/pooling` with TerraTorch", http_servers.vllm, cannot=NO_MODEL, notes=IN_THE_ANSWER),
    Peer(
        "tiled-inference",
        "TerraTorch `tiled_inference`",
        scripts.tiled_inference,
        "terratorch",
        SCENES_ONLY,
        ONE_BY_ONE,
    ),
    Peer("library", "Penstock, `penstock.Engine`", scripts.library, cannot=SCENES_ONLY, notes=ONE_BY_ONE),
)
