"""The starter of workers against a real API; moto plays ECS and Secrets Manager."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from penstock.api_keys import Scope, new_key
from penstock.jobs import JobKey, Submission
from penstock.scaling import ScalingBounds
from penstock.storage.journal.api_keys import put_key
from penstock.storage.redis import records
from penstock.storage.redis.records import QueueLimits
from tests.aws.deployment import TEMPLATE
from tests.support.api_server import listening
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess, start_valkey

FAMILY = "penstock-worker"
LIMITS = QueueLimits(max_queued=1000, max_tenant_jobs=1000, retention_s=3600, max_crashes=3)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("starter", TEMPLATE.with_name("starter.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STARTER = _load()


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    server = start_valkey(tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.fixture
async def service(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    async with serving(valkey.url, tmp_path, access="keys", scaling=ScalingBounds(max_workers=20)) as running:
        await running.jobs.client.flushall()
        yield running


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """ECS with a task definition on Fargate, and the variables of the template."""
    with mock_aws():
        ecs, ec2 = boto3.client("ecs"), boto3.client("ec2")
        ecs.create_cluster(clusterName="penstock", capacityProviders=["FARGATE"])
        task = ecs.register_task_definition(
            family=FAMILY,
            networkMode="awsvpc",
            requiresCompatibilities=["FARGATE"],
            cpu="1024",
            memory="8192",
            containerDefinitions=[{"name": "worker", "image": "worker", "cpu": 1024, "memory": 8192}],
        )["taskDefinition"]["taskDefinitionArn"]
        subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        pool = {"queue": "default", "family": FAMILY, "task": task, "provider": "FARGATE", "most": 13}
        variables = {
            "CLUSTER": "penstock",
            "KEY": "monitor-key",
            "SUBNETS": subnet,
            "SECURITY_GROUP": ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"],
            "POOLS": json.dumps([{**pool, "name": "cpu"}]),
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield ecs


def _give_key(service: Service, scope: Scope) -> None:
    record, text = new_key(
        "of the tests", tenant="default", name="starter", scopes=[scope], created_s=time.time(), expires_s=None
    )
    put_key(service.objects, record)
    boto3.client("secretsmanager").create_secret(Name="monitor-key", SecretString=text + "\n")


async def _start(service: Service, monkeypatch: pytest.MonkeyPatch, event: str) -> dict[str, int]:
    """Run the handler in a thread, beside the API."""
    async with listening(service) as server:
        monkeypatch.setenv("API_URL", server.url)
        counts: dict[str, int] = await asyncio.to_thread(STARTER.handler, {"id": event}, None)
        return counts


async def _queue_jobs(service: Service, count: int) -> None:
    for _ in range(count):
        key = JobKey("default", uuid.uuid4().hex)
        submission = Submission(key=key, model="echo", queue="default", input={"text": "hi"}, fingerprint="a")
        await service.jobs.run(records.submit(submission, LIMITS))


def _tasks(cloud: Any) -> list[str]:
    return [str(each) for each in cloud.list_tasks(cluster="penstock", family=FAMILY)["taskArns"]]


async def test_it_starts_what_the_queue_wants_and_then_nothing(
    service: Service, cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_key(service, Scope.MONITOR)
    assert await _start(service, monkeypatch, "first") == {"cpu": 0}
    await _queue_jobs(service, 6)  # a worker has two slots
    assert await _start(service, monkeypatch, "second") == {"cpu": 3}
    assert await _start(service, monkeypatch, "third") == {"cpu": 0}
    cloud.stop_task(cluster="penstock", task=_tasks(cloud)[0])
    assert await _start(service, monkeypatch, "fourth") == {"cpu": 1}


async def test_it_starts_more_than_one_request_may_and_no_more_than_the_pool_has(
    service: Service, cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_key(service, Scope.MONITOR)
    await _queue_jobs(service, 60)
    assert await _start(service, monkeypatch, "event") == {"cpu": 13}
    assert len(_tasks(cloud)) == 13


async def test_a_queue_without_models_gets_no_worker_and_a_failing_pool_stops_no_other(
    service: Service, cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_key(service, Scope.MONITOR)
    await _queue_jobs(service, 1)
    (pool,) = json.loads(os.environ["POOLS"])
    unknown = {**pool, "name": "gpu", "queue": "no/such queue"}
    monkeypatch.setenv("POOLS", json.dumps([unknown, pool]))
    assert await _start(service, monkeypatch, "event") == {"gpu": 0, "cpu": 1}
    broken = {**pool, "name": "gpu", "family": "none", "task": "no-such-task"}
    monkeypatch.setenv("POOLS", json.dumps([broken, {**pool, "family": "another"}]))
    with pytest.raises(RuntimeError, match=r"gpu: "):
        await _start(service, monkeypatch, "later")
    assert len(_tasks(cloud)) == 2


async def test_without_the_right_key_or_an_api_it_starts_nothing_and_fails(
    service: Service, cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_key(service, Scope.READ)
    await _queue_jobs(service, 1)
    with pytest.raises(RuntimeError, match="403"):
        await _start(service, monkeypatch, "event")
    monkeypatch.setenv("API_URL", "http://127.0.0.1:9")
    with pytest.raises(RuntimeError, match="refused"):
        STARTER.handler({"id": "event"}, None)
    assert _tasks(cloud) == []


@given(wanted=st.integers(0, 100), started=st.integers(0, 100), most=st.integers(0, 100))
def test_it_only_adds_and_never_beyond_the_most(wanted: int, started: int, most: int) -> None:
    added = STARTER.missing(wanted, started, most)
    assert added >= 0
    assert added == 0 or started + added == min(wanted, most)
