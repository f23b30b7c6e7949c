"""Language models of every type continue texts as the library's own `generate` does, alone and in turns with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Continue
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.transformers.supported_types import EQUAL, outcomes
from penstock.workers.engine.transformers.tasks import Task
from tests.support.tiny_types import small
from tests.support.type_trials import asked, finished, language_network, text_generation, texts

pytestmark = pytest.mark.library

#: One of each kind of state.
FAMILIES = ("gpt2", "jamba", "lfm2", "mamba", "rwkv", "t5")


def tried() -> list[str]:
    """Return the types that are served."""
    return [kind for kind, ways in outcomes()[Task.TEXT_GENERATION].items() if not isinstance(ways, str)]


def a_model(source: Path, **fields: Any) -> Model:
    common = {"title": "M", "processor": "text-generation", "revision": "1", "device": "cpu", "max_batch": 4}
    return Model(name="writer", runner="transformers", source=str(source), **{**common, **fields})


@pytest.mark.breadth(but=FAMILIES)
@pytest.mark.parametrize("kind", tried())
def test_a_type_makes_the_librarys_tokens_alone_and_beside_others(tmp_path: Path, kind: str) -> None:
    assert text_generation(kind, tmp_path) == [EQUAL]
    Runners.installed().check(a_model(tmp_path))


@pytest.mark.parametrize("kind", ["gpt2", "mamba", "lfm2", "t5"])
def test_a_step_that_failed_is_taken_again(tmp_path: Path, kind: str) -> None:
    language_network(kind, tmp_path)
    runner = Runners.installed().load(a_model(tmp_path))
    ids = texts()[0]
    [alone] = finished(runner, [runner.admit(asked(ids))])
    state: Any = runner.admit(asked(ids))
    for _ in range(3):
        step = runner.step([state])[0]
        assert isinstance(step, Continue)
        again = runner.step([state])[0]  # as the engine does after an error of another text
        assert isinstance(again, Continue)
        assert again.state == step.state
        state = step.state
    state.held.close()  # as an error of its own leaves it
    assert finished(runner, [state]) == [alone]


@pytest.mark.parametrize("kind", ["mamba", "t5"])
def test_embeddings_instead_of_tokens_make_the_same_text(tmp_path: Path, kind: str) -> None:
    language_network(kind, tmp_path)
    runner: Any = Runners.installed().load(a_model(tmp_path))
    prompt = asked(texts()[0])
    table = runner.network.get_input_embeddings().weight.detach().numpy()
    embedded = {name: value for name, value in prompt.data.items() if name != "input_ids"}
    embedded["inputs_embeds"] = table[prompt.data["input_ids"]]
    [alone], [same] = (finished(runner, [runner.admit(one)]) for one in (prompt, Prompt(embedded)))
    assert same == alone


@pytest.mark.parametrize(
    ("kind", "words"),
    [("voxtral", "does not make texts"), ("musicgen", "something other than texts"), ("xmod", "needs a language")],
)
def test_a_type_that_makes_no_texts_is_refused_unread_whatever_the_record_says(
    tmp_path: Path, kind: str, words: str
) -> None:
    config = transformers.AutoConfig.for_model(kind).to_dict()
    # What a directory of the type says of itself is enough for the refusal.
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": kind}, default=str))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelUnavailable, match=words):
        Runners.installed().check(a_model(tmp_path, options={"untried": True}))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("bert", {"is_decoder": False}, "lacks `is_decoder`"),
        ("t5", {"decoder_start_token_id": None}, "names no `decoder_start_token_id`"),
        ("llama", {"num_attention_heads": 0}, "do not make a network"),
        ("whisper", {}, "`speech-recognition` serves it"),
    ],
)
def test_a_directory_that_makes_no_texts_is_refused_unread(
    tmp_path: Path, kind: str, changes: dict[str, Any], words: str
) -> None:
    if kind == "whisper":
        transformers.WhisperForConditionalGeneration(small(kind)).save_pretrained(tmp_path)
    else:
        language_network(kind, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(ModelUnavailable, match=words):
        Runners.installed().check(a_model(tmp_path))
