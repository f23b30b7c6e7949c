"""S3 with SQS, SNS and EventBridge for tests: two emulators that differ, each in a process of its own.

Neither checks who asks: what must be refused is tested on Ceph (`tests/support/ceph.py`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from penstock.config_tables import S3

REGION = "eu-central-1"
_ALLOW = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"}]}
)


@dataclass(frozen=True)
class Emulator:
    """A running emulator."""

    kind: str
    port: int

    @property
    def s3(self) -> S3:
        """Return the settings of a client."""
        return S3(endpoint_url=self.url, access_key_id="test", secret_access_key="test", region=REGION)

    @property
    def url(self) -> str:
        """Return the emulator's address."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, service: str) -> Any:
        """Return boto3's client of one of its services."""
        return _client(self.url, service)

    def bucket(self) -> str:
        """Make a new bucket and return its name."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        return name

    def queue(self, *, visibility_s: int = 60) -> tuple[str, str]:
        """Make a new queue that takes messages from anybody and return its address and its ARN."""
        sqs = self.client("sqs")
        attributes = {"VisibilityTimeout": str(visibility_s), "Policy": _ALLOW}
        made = sqs.create_queue(QueueName=f"test-{uuid.uuid4().hex[:12]}", Attributes=attributes)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=made, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        return f"{self.url}/{made.split('/', 3)[3]}", arn

    def send(self, url: str, *bodies: str) -> None:
        """Put messages into a queue."""
        sqs = self.client("sqs")
        for body in bodies:
            sqs.send_message(QueueUrl=url, MessageBody=body)

    def left(self, url: str) -> int:
        """Return how many messages a queue holds, received or not."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)


@cache
def _client(url: str, service: str) -> Any:
    """Return a client, which threads may share: making one takes longer than most requests."""
    # botocore's own retries wait for an emulator that comes up late.
    retries = Config(retries={"mode": "standard", "total_max_attempts": 20}, connect_timeout=2, read_timeout=60)
    return boto3.session.Session().client(
        service, endpoint_url=url, region_name=REGION, aws_access_key_id="test", aws_secret_access_key="test",
        config=retries,
    )  # fmt: skip


@contextmanager
def emulating(kind: str, folder: Path, port: int | None = None) -> Iterator[Emulator]:
    """Run an emulator, on a free port without a given one; it ends with the test run, even with one that is killed."""
    port = _free_port() if port is None else port
    command = {
        "moto": [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        "ministack": [str(Path(sys.executable).parent / "ministack")],
    }[kind]
    env = {**os.environ, "GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "MINISTACK_REGION": REGION}
    with (folder / f"{kind}.log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            emulator = Emulator(kind, port)
            emulator.client("s3").list_buckets()
            yield emulator
        finally:
            process.terminate()
            process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
