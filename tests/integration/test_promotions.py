"""Two revisions of a model side by side: an alias moves from one to the other, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.api.model_catalogue import ModelCatalogue
from penstock.storage.journal.promotions import Promotion, put_promotion
from penstock.storage.journal.stored_models import put_published
from tests.support.batch_keeper import KeeperMoves, line, submitted
from tests.support.command_line import Shell
from tests.support.service import ECHO, Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

MODELS = [ECHO.model_copy(update={"name": f"echo-{n}", "aliases": (), "revision": str(n)}) for n in (1, 2)]


@pytest.fixture
async def service(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """Return a service with two published revisions of a model, and no worker."""
    async with serving(valkey.url, tmp_path) as running:
        valkey.flush()
        for model in MODELS:
            put_published(running.objects, model, owner="ci")
        yield running


def forget(service: Service) -> None:
    """Let the API read the stored models again, as it does every ten seconds."""
    service.swap(models=ModelCatalogue(service.jobs, service.objects))


async def model_of(service: Service, name: str, text: str = "hello") -> str:
    answer = await service.http.post("/v1/jobs", json={"model": name, "input": {"text": text}})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["model"])


@pytest.mark.breadth
async def test_the_command_moves_an_alias_forth_and_back(service: Service) -> None:
    shell = Shell({"PENSTOCK_DATA": str(service.settings.data), "PENSTOCK_SECRET": "of the tests"})
    refused = await service.http.post("/v1/jobs", json={"model": "voice", "input": {"text": "hello"}})
    assert_problem(refused, 422, "unknown_model")
    for words, expected in [
        (("echo-1",), "echo-1"),
        (("echo-2",), "echo-2"),
        (("--back",), "echo-1"),
        (("--back",), "echo-2"),
    ]:
        done = await shell("models", "promote", "voice", *words, "--by", "ann", "--json")
        assert done.code == 0, done.err
        assert done.document()[0]["shares"] == {expected: 100}
        forget(service)
        assert await model_of(service, "voice") == expected
        assert (await service.http.get("/v1/models/voice")).json()["revision"] == expected[-1]
    assert await model_of(service, "voice@1") == "echo-1"
    assert await model_of(service, "echo-2@2") == "echo-2"
    unknown = await service.http.post("/v1/jobs", json={"model": "echo-2@1", "input": {"text": "hello"}})
    assert "there is no model 'echo-2@1'" in assert_problem(unknown, 422, "unknown_model")["detail"]
    shown = await shell("models", "promote")
    assert "voice" in shown.out
    assert "echo-2 100 %" in shown.out
    assert (await shell("models", "promote", "voice", "--remove")).code == 0
    forget(service)
    assert (await service.http.get("/v1/models/voice")).status_code == 404


@pytest.mark.breadth(but=("words1-the service has no model 'echo-3'",))
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("echo-1", "echo-2"), "'echo-1' is a name of model 'echo-1'"),
        (("voice", "echo-3"), "the service has no model 'echo-3'"),
        (("voice", "echo-1=ten"), "not a model and a whole number of percent"),
        (("voice", "echo-1=10"), "the percentages add up to 10"),
        (("voice", "--back"), "no alias 'voice' was promoted"),
        (("Voice 1", "echo-1"), "is not a name"),
    ],
)
async def test_the_command_refuses_in_words(words: tuple[str, ...], said: str, service: Service) -> None:
    shell = Shell({"PENSTOCK_DATA": str(service.settings.data), "PENSTOCK_SECRET": "of the tests"})
    done = await shell("models", "promote", *words)
    assert done.code == 2
    assert said in " ".join(done.err.split())


async def test_jobs_and_lines_of_batches_are_shared(service: Service) -> None:
    put_promotion(service.objects, Promotion("voice", {"echo-1": 50, "echo-2": 50}))
    forget(service)
    found = Counter([await model_of(service, "voice", str(number)) for number in range(40)])
    assert set(found) == {"echo-1", "echo-2"}
    keeper = KeeperMoves(service)
    batch = await submitted(service, requests=[{**line(str(number)), "model": "voice"} for number in range(40)])
    await keeper.expand()
    keeper.close()
    listed = await service.http.get("/v1/jobs", params={"batch_id": batch["id"], "limit": 100})
    lines = Counter(job["model"] for job in listed.json()["jobs"])
    assert sum(lines.values()) == 40
    assert set(lines) == {"echo-1", "echo-2"}


async def test_a_repeated_submission_keeps_its_job_although_the_alias_moved(service: Service) -> None:
    put_promotion(service.objects, Promotion("voice", {"echo-1": 100}))
    forget(service)
    body, headers = {"model": "voice", "input": {"text": "hello"}}, {"Idempotency-Key": "once"}
    first = (await service.http.post("/v1/jobs", json=body, headers=headers)).json()
    put_promotion(service.objects, Promotion("voice", {"echo-2": 100}))
    forget(service)
    again = (await service.http.post("/v1/jobs", json=body, headers=headers)).json()
    assert (again["id"], again["model"]) == (first["id"], "echo-1")


@pytest.mark.breadth
async def test_other_interfaces_share_too(service: Service) -> None:
    put_promotion(service.objects, Promotion("voice", {"echo-1": 50, "echo-2": 50}))
    forget(service)
    found = Counter()
    for number in range(30):
        made = await service.http.post("/runpod/v2/voice/run", json={"input": {"text": str(number)}})
        assert made.status_code == 200, made.text
        seen = await service.http.get(f"/runpod/v2/voice/status/{made.json()['id']}")
        assert seen.json()["status"] == "IN_QUEUE"
        found[(await service.http.get(f"/v1/jobs/{made.json()['id']}")).json()["model"]] += 1
    assert set(found) == {"echo-1", "echo-2"}
