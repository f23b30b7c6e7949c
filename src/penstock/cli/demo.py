"""The demo: starts the whole system on free ports, runs one scene, and stops everything.

It acts like any user: it starts `penstock up`, uses the client, and receives the webhook.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from penstock.cli.display import err, out, table
from penstock.cli.progress import following, transfer
from penstock.cli.samples import write_sample_file
from penstock.client import Client, Job
from penstock.config import Settings
from penstock.config_tables import DEFAULT_TENANT
from penstock.errors import ConfigError
from penstock.jobs import Delivery
from penstock.storage.objects.opening import open_store, tenant_webhook_secret
from penstock.webhooks import verify

MODEL, FIELD = "csmask", "scene"
#: The same model for ONNX Runtime.
ONNX_CATALOGUE = "package:penstock/catalogue/csmask-onnx.toml"
RESULT = (
    "classes.tif", "classes.tif.aux.xml", "classes.qml", "preview.png", "stats.json", "manifest.json", "job.json",
    "webhook.json",
)  # fmt: skip
START_TIMEOUT_S, WEBHOOK_TIMEOUT_S, STOP_TIMEOUT_S = 180.0, 60.0, 60.0
#: Seconds between the webhook's arrival and the keeper's record of it, at most; seconds between two polls.
SETTLE_TIMEOUT_S, POLL_EVERY_S = 10.0, 0.1


@dataclass
class Receiver:
    """A webhook receiver on loopback that keeps the first delivery."""

    address: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    came: threading.Event = field(default_factory=threading.Event)


def run_demo(scene: Path | None, folder: Path, *, keep: bool = False) -> int:
    """Run the demo and return 0 if all of `RESULT` is in the folder; raises `ClientError` or `ConfigError`.

    With `keep` the service runs until Ctrl-C, and its page shows the result. SIGTERM and SIGHUP end the demo as Ctrl-C
    does: it stops the service and removes its folder.
    """
    if scene is not None and not scene.is_file():
        raise ConfigError(f"there is no file {scene}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in RESULT:
        (folder / name).unlink(missing_ok=True)
    with ExitStack() as stack:
        stack.enter_context(_signals_unwind())
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        if scene is None:
            scene = data / "sample.tif"
            write_sample_file(scene)
            out.print("scene   a synthetic one, written by `penstock sample`")
        receiver = stack.enter_context(_receiving())
        client = stack.enter_context(running(data / "service", allowed=[receiver.address]))
        job = _run(client, scene, receiver)
        if not job.succeeded:
            (folder / "job.json").write_text(json.dumps(dict(job.raw), indent=2, ensure_ascii=False) + "\n")
            err.print(f"the job {job.status.value}: {job.error.detail if job.error else 'no reason was given'}")
            return 1
        _save_webhook(receiver, data, folder / "webhook.json")
        job = settled(client, job.id)
        with transfer(err, "saving") as on_bytes:
            client.download(job, folder, on_bytes=on_bytes)
        _show(job, folder)
        if keep:
            _keep(job)
    missing = [name for name in RESULT if not (folder / name).is_file() or not (folder / name).stat().st_size]
    if missing:
        err.print(f"missing in {folder}: {', '.join(missing)}")
    return 1 if missing else 0


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Raise `SystemExit` at the first SIGTERM or SIGHUP, and ignore further ones while the demo stops everything.

    `timeout make demo` sends two: its own, and the one that make passes on.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)

    def end(number: int, _frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep(job: Job) -> None:
    """Print the address of the job's page, and return after Ctrl-C."""
    address = str(job.raw["links"]["self"]).partition("/v1/")[0]
    out.print(f"map     {address}/ui/#/job/{job.id}", soft_wrap=True)
    out.print("        open this address in a browser; Ctrl-C ends the service")
    with suppress(KeyboardInterrupt):
        signal.pause()


def _run(client: Client, scene: Path, receiver: Receiver) -> Job:
    with transfer(err, "sending") as on_bytes:
        hook = f"http://{receiver.address}/webhook"
        job = client.submit(MODEL, files={FIELD: scene}, webhook=hook, on_bytes=on_bytes)
    out.print(f"job     {job.id}: {MODEL} on {scene.name}")
    with following(err) as on_job:
        return client.wait(job.id, on_job=on_job)


def settled(client: Client, job_id: str, *, patience_s: float = SETTLE_TIMEOUT_S) -> Job:
    """Return an ended job once its webhook's outcome is stored, or in its state after `patience_s`."""
    ends = time.monotonic() + patience_s
    while (job := client.job(job_id)).delivery == Delivery.PENDING and time.monotonic() < ends:
        time.sleep(POLL_EVERY_S)
    return job


@contextmanager
def running(data: Path, *, allowed: Sequence[str] = ()) -> Iterator[Client]:
    """Start `penstock up` on a free port with its own settings; yield a client once the model can be used.

    `allowed` are the `host:port` pairs that jobs and webhooks may name.
    """
    data.mkdir(parents=True, exist_ok=True)
    (data / "penstock.toml").write_text(_configuration())
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env |= {"PENSTOCK_CONFIG": str(data / "penstock.toml"), "PENSTOCK_ALLOWED_HOSTS": json.dumps(list(allowed))}
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(data), "--port", "0"]
    command += ["--supervisor", str(os.getpid())]
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    ready: Future[str] = Future()
    # Its output goes through our console, so that it appears above the progress bar and not inside it.
    telling = threading.Thread(target=_tell, args=(process, ready))
    telling.start()
    try:
        with Client(_address(ready), patience_s=60) as client:
            _check_model(client)
            yield client
    finally:
        _end(process)
        telling.join()


def _configuration() -> str:
    """Return the settings of the demo's service: without torch, ONNX Runtime computes its model."""
    if find_spec("torch") is not None or find_spec("onnxruntime") is None:
        return ""
    out.print("model   by ONNX Runtime, as torch is not installed")
    return f'models = ["{ONNX_CATALOGUE}"]\n'


def _tell(process: subprocess.Popen[str], ready: Future[str]) -> None:
    """Print the service's output; `ready` gets its address, or an error where it ends before."""
    for line in process.stdout or ():
        err.print(line.rstrip())
        if line.startswith("ready"):
            ready.set_result(line.split()[1])
    if not ready.done():
        ready.set_exception(ConfigError("the service ended during its start: see its output above"))


def _address(ready: Future[str]) -> str:
    try:
        return ready.result(START_TIMEOUT_S)
    except TimeoutError as error:
        raise ConfigError(f"the service was not ready after {START_TIMEOUT_S:.0f} s") from error


def _check_model(client: Client) -> None:
    problem = client.model(MODEL).problem
    if problem:
        raise ConfigError(f"the model {MODEL} cannot be used: {problem}")


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not receiver.came.is_set():
                receiver.headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.body = body
                receiver.came.set()
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it)
            """Log nothing: the demo shows the webhook."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _save_webhook(receiver: Receiver, data: Path, path: Path) -> None:
    """Wait for the webhook, verify its signature and save it; without a webhook there is no file."""
    if not receiver.came.wait(WEBHOOK_TIMEOUT_S):
        err.print(f"no webhook arrived within {WEBHOOK_TIMEOUT_S:.0f} s")
        return
    settings = Settings(data=data / "service")
    secret = tenant_webhook_secret(open_store(settings.store_url, settings), DEFAULT_TENANT)
    body = verify(receiver.body, receiver.headers, secret)
    content = {"verified": True, "headers": _webhook_headers(receiver.headers), "body": body}
    path.write_text(json.dumps(content, indent=2) + "\n")


def _webhook_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith(("webhook-", "content-"))}


def _show(job: Job, folder: Path) -> None:
    files = table("result", "where", "bytes")
    for name in RESULT:
        path = folder / name
        files.add_row(name, str(path), f"{path.stat().st_size:,}" if path.is_file() else "missing")
    out.print(files)
    phases = table("phase", "seconds")
    for name, value in job.metrics.items():
        if name.endswith("_ms"):
            phases.add_row(name.removesuffix("_ms").replace("_", " "), f"{value / 1000:.2f}")
    out.print(phases)
    _show_classes(folder / "stats.json")


def _show_classes(stats: Path) -> None:
    if not stats.is_file():
        return
    shares = table("class", "% of valid pixels")
    for row in json.loads(stats.read_text()).get("classes", []):
        shares.add_row(str(row.get("name")), f"{row['percent']:.2f}" if row.get("percent") is not None else "-")
    out.print(shares)
