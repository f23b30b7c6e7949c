"""Start the workers that queues want, once a minute. Nothing here ends a worker: an idle one leaves by itself."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import boto3

#: Tasks that one RunTask starts, at most (a limit of ECS).
BATCH = 10


def missing(wanted: int, started: int, most: int) -> int:
    """Return the number of workers to start. Pure."""
    return max(0, min(wanted, most) - started)


def wanted_workers(queue: str, key: str) -> int:
    """Return the API's number; 0 for a queue that has no model yet."""
    address = f"{os.environ['API_URL']}/v1/queues/{quote(queue, safe='')}"
    request = Request(address, headers={"Authorization": f"Bearer {key}"})  # noqa: S310  (our own API)
    try:
        with urlopen(request, timeout=10) as answer:  # noqa: S310
            return int(json.load(answer)["wanted_workers"])
    except HTTPError as error:
        if error.code == 404:
            return 0
        raise


def started_workers(ecs: Any, family: str) -> int:
    """Return the number of tasks that wait for a machine, start or run. Tasks that were told to stop do not count."""
    pages = ecs.get_paginator("list_tasks").paginate(
        cluster=os.environ["CLUSTER"], family=family, desiredStatus="RUNNING"
    )
    return sum(len(page["taskArns"]) for page in pages)


def start(ecs: Any, pool: dict[str, Any], count: int, event: str) -> None:
    """Start `count` tasks; raise `RuntimeError` if ECS refuses any. A repeated event starts no second set."""
    for first in range(0, count, BATCH):
        answer = ecs.run_task(
            cluster=os.environ["CLUSTER"],
            taskDefinition=pool["task"],
            capacityProviderStrategy=[{"capacityProvider": pool["provider"], "weight": 1}],
            count=min(BATCH, count - first),
            networkConfiguration={
                "awsvpcConfiguration": {
                    "subnets": os.environ["SUBNETS"].split(","),
                    "securityGroups": [os.environ["SECURITY_GROUP"]],
                    "assignPublicIp": "DISABLED",
                }
            },
            startedBy="penstock-starter",
            clientToken=f"{event}-{pool['name']}-{first}"[:64],
        )
        if answer["failures"]:
            raise RuntimeError(f"{pool['name']}: ECS refused a task: {answer['failures']}")


def handler(event: dict[str, Any], _context: object) -> dict[str, int]:
    """Return the number of workers started in each pool. A pool that fails does not stop the others."""
    key = boto3.client("secretsmanager").get_secret_value(SecretId=os.environ["KEY"])["SecretString"].strip()
    ecs = boto3.client("ecs")
    counts, errors = {}, []
    for pool in json.loads(os.environ["POOLS"]):
        try:
            count = missing(wanted_workers(pool["queue"], key), started_workers(ecs, pool["family"]), pool["most"])
            start(ecs, pool, count, event["id"])
            counts[pool["name"]] = count
        except Exception as error:
            errors.append(f"{pool['name']}: {error!r}")
    print(json.dumps({"started": counts, "errors": errors}))  # noqa: T201  (a Lambda's log is its output)
    if errors:
        raise RuntimeError("; ".join(errors))
    return counts
