"""The library's `generate`, token by token, on a tiny random network."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from penstock.workers.engine.resumable import Paused, Resumable
from penstock.workers.engine.torch.device import TorchDevice
from penstock.workers.engine.transformers import stepwise
from penstock.workers.engine.transformers.sampling import Sampling
from tests.support.hub import a_model
from tests.support.language import a_gpt2

IDS = [3, 4, 5, 6, 7]
NEW = 8


@pytest.fixture
def network(tmp_path: Path) -> Any:
    torch.manual_seed(3)
    a_gpt2(tmp_path, eos_token_id=None)
    return transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()


def begun(network: Any, made: list[int], **wanted: Any) -> Resumable:
    device = TorchDevice.of(a_model(Path("tiny")))
    sampling = Sampling.of({"max_new_tokens": NEW, "seed": 5, **wanted})
    ids = torch.tensor([IDS])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return stepwise.begun(network, device, inputs, sampling, made, nullcontext())


def following(generation: Resumable) -> Any:
    """Return the next token, None after the end."""
    came = generation.resume()
    return came.value if isinstance(came, Paused) else None


def expected(network: Any) -> list[int]:
    ids = torch.tensor([IDS])
    made = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
    new: list[int] = made[0, len(IDS) :].tolist()
    return new


def test_each_token_is_the_librarys_and_costs_one_pass(network: Any) -> None:
    known, passes = expected(network), []
    network.register_forward_hook(lambda *_: passes.append(1))
    generation = begun(network, [])
    assert not passes
    for count, token in enumerate(known, start=1):
        assert following(generation) == token
        assert len(passes) == count
    assert following(generation) is None
    generation.close()


def test_a_text_goes_on_after_tokens_that_were_chosen_before(network: Any) -> None:
    whole = begun(network, [], temperature=1.0)
    tokens = [following(whole) for _ in range(NEW)]
    assert tokens != expected(network), "a draw that is the likeliest text tells nothing"
    later = begun(network, tokens[:3], temperature=1.0)
    assert [following(later) for _ in range(3)] == tokens[3:6]
    for generation in (whole, later):
        generation.close()


def test_texts_in_turns_do_not_touch_each_other(network: Any) -> None:
    several = [begun(network, [], temperature=1.0, seed=seed) for seed in range(4)]
    alone = [begun(network, [], temperature=1.0, seed=seed) for seed in range(4)]
    in_turns = list(zip(*([following(generation) for generation in several] for _ in range(NEW)), strict=True))
    assert [[*tokens] for tokens in in_turns] == [[following(one) for _ in range(NEW)] for one in alone]
    for generation in (*several, *alone):
        generation.close()


def test_an_error_of_a_pass_is_raised_at_its_token(network: Any) -> None:
    generation = begun(network, [])
    following(generation)

    def fail(*_: object) -> None:
        raise ValueError("no more")

    network.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="no more"):
        following(generation)
    generation.close()
