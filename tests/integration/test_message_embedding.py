"""Vectors by chat networks that embed: those of the library's own processor and network, batched and alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.intake.media import LocalMedia
from penstock.models import Limits, Model
from penstock.processors.base import Prompt
from penstock.processors.registry import Registry
from penstock.processors.testing import LocalFiles, check_processor
from penstock.workers.compatibility import checked_entry
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.support.hub import a_model, load
from tests.support.image_text_kinds import KINDS
from tests.support.image_text_types import write_kind
from tests.support.message_embedders import EMBEDDERS, library_vectors
from tests.support.model_directories import write_json
from tests.support.vectors import photos, vectors

#: The library's own, about numpy and its settings.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]
TEXTS = ["a cat", "What is the dog doing on the sofa?", "x", "a cat on a"]
INSTRUCTION = "Find it."
MIB = 2**20
ROOT = Path(__file__).parents[2]


def an_embedder(folder: Path, **fields: Any) -> Model:
    return a_model(folder, **{"processor": "text-image-embedding", "max_batch": 8, **fields})


def an_encoder(model: Model) -> Any:
    """Return the encoder of the model's processor, with the library's processor."""
    processor: Any = Registry.imported().processor_for(model)
    return processor._way.encoder


def pictures(paths: Mapping[str, Path]) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in paths.values()]


def an_image(reference: str) -> dict[str, str]:
    return {"type": "image", "image": reference}


WORDS = {"type": "text", "text": "which?"}


def a_request(paths: Mapping[str, Path], most: int) -> dict[str, Any]:
    """Return a request for texts, images and items of both."""
    shown = list(map(an_image, paths))
    items = [[shown[0], WORDS], [shown[1], WORDS], shown[:most], [*shown[:most], WORDS]]
    return {"texts": TEXTS, "images": list(paths), "items": items}


def the_items(paths: Mapping[str, Path], most: int) -> list[list[Any]]:
    """Return the same for the library."""
    shown = pictures(paths)
    both = [[shown[0], "which?"], [shown[1], "which?"], shown[:most], [*shown[:most], "which?"]]
    return [*([text] for text in TEXTS), *([picture] for picture in shown), *both]


@pytest.mark.breadth(but=("qwen2_vl",))
@pytest.mark.parametrize("kind", EMBEDDERS)
def test_vectors_are_the_library_s_batched_and_alone(kind: str, tmp_path: Path) -> None:
    folder, paths = write_kind(kind, tmp_path / "m"), photos(tmp_path)
    most = KINDS[kind].most if kind in KINDS else 2
    model, asked = an_embedder(folder), a_request(paths, most)
    theirs = an_encoder(model).processor
    expected = library_vectors(folder, theirs, the_items(paths, most), INSTRUCTION)
    assert np.ptp(expected, axis=0).max() > 0.02, "items make a difference"
    together, data = vectors(model, paths, **asked, prompt=INSTRUCTION)
    np.testing.assert_allclose(together, expected, rtol=0, atol=5e-5)
    for batch in batches(model, paths, asked):
        np.testing.assert_allclose(list(batch.values()), expected[list(batch)], rtol=0, atol=5e-5)
    counts = {name: data[name] for name in ("count", "texts", "images", "items", "truncated")}
    assert counts == {"count": 11, "texts": 4, "images": 3, "items": 4, "truncated": []}
    alone, _ = vectors(an_embedder(folder, max_batch=1), paths, **asked, prompt=INSTRUCTION)
    np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5)


def batches(model: Model, paths: Mapping[str, Path], asked: dict[str, Any]) -> list[dict[int, Any]]:
    """Return the vectors by the numbers of items, in the largest batches that the runner allows."""
    processor: Any = Registry.imported().processor_for(model)
    request = processor.request.model_validate({**asked, "prompt": INSTRUCTION})
    prompts = dict(enumerate(processor.pre_process(request, LocalFiles(paths)).prompts))
    found, sizes, lengths = [], [], []
    with closing(load(Path(model.source), processor=model.processor)) as runner:
        alike: dict[Any, list[int]] = {}
        for number, prompt in prompts.items():
            alike.setdefault(runner.bucket(prompt), []).append(number)
        for numbers in alike.values():
            done = runner.step([runner.admit(prompts[number]) for number in numbers])
            found.append(
                {n: step.output.data["embedding"] for n, step in zip(numbers, done, strict=True) if step.output}
            )
            sizes.append(sum("inputs.pixel_values" in prompts[number].data for number in numbers))
            lengths.append(len({prompts[number].data["inputs.input_ids"].shape for number in numbers}))
    assert max(sizes) > 1, "some share a batch with images"
    assert max(lengths) > 1, "some share a batch with longer ones"
    return found


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kind("qwen2_vl", tmp_path_factory.mktemp("qwen") / "m")


def a_copy(source: Path, folder: Path, template: str | None = None, **files: Any) -> Path:
    """Return a directory with the same files, another chat template, and further JSON files by their names."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        (folder / file.name).symlink_to(file)
    if template is not None:
        (folder / "chat_template.jinja").unlink()
        (folder / "chat_template.jinja").write_text(template)
    for name, data in files.items():
        path = folder / f"{name}.json"
        path.unlink(missing_ok=True)
        path.write_text(json.dumps(data))
    return folder


_ONE = {"method": "forward", "method_output_name": "last_hidden_state"}
FORM = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": _ONE, "image": _ONE, "message": {**_ONE, "format": "structured"}},
    "module_output_name": "token_embeddings",
    "processing_kwargs": {"chat_template": {"add_generation_prompt": False, "short": True}},
}
PROMPTS = {"prompts": {"query": "Find it.", "document": None, "it": INSTRUCTION}, "default_prompt_name": "it"}
_TYPES = ("base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling")


def a_published(source: Path, folder: Path, pooling: str = "lasttoken", **changes: Any) -> Path:
    """Return the directory of an embedder in the form of sentence-transformers 6.2, which takes 24 dimensions."""
    types = [*_TYPES, "sentence_transformer.modules.normalize.Normalize"]
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.{name}"}
        for at, (name, path) in enumerate(zip(types, ("", "1_Pooling", "2_Normalize"), strict=True))
    ]
    made = a_copy(
        source, folder, modules=modules, sentence_bert_config={**FORM, **changes},
        config_sentence_transformers={**PROMPTS, "truncate_dim": 24},
    )  # fmt: skip
    (made / "1_Pooling").mkdir()
    write_json(made / "1_Pooling", "config.json", {"embedding_dimension": 32, "pooling_mode": pooling})
    return made


@pytest.mark.breadth(but=("asked0", "asked1"))
@pytest.mark.parametrize("asked", [{}, {"prompt_name": "query"}, {"prompt_name": "document"}, {"prompt": "So:"}])
def test_the_form_of_sentence_transformers_says_how_a_message_is_read(
    qwen: Path, tmp_path: Path, asked: dict[str, str]
) -> None:
    """Compared once with sentence-transformers 6.2 itself: the greatest difference was 8e-8."""
    template = (qwen / "chat_template.jinja").read_text() + "{% if short %}!{% else %}?{% endif %}"
    folder, paths = a_published(a_copy(qwen, tmp_path / "with", template), tmp_path / "m"), photos(tmp_path)
    model = an_embedder(folder)
    prompt = asked.get("prompt", PROMPTS["prompts"][asked.get("prompt_name", "it")]) or ""
    items = the_items(paths, 2)
    arguments = FORM["processing_kwargs"]["chat_template"]
    expected = library_vectors(folder, an_encoder(model).processor, items, prompt, **arguments)
    found, data = vectors(model, paths, **a_request(paths, 2), **asked)
    np.testing.assert_allclose(found, expected[:, :24], rtol=0, atol=5e-5)
    assert data["dimensions"] == 24
    with pytest.raises(ValueError, match="prompt_name"):
        vectors(model, paths, texts="a", prompt_name="other")


_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
#: A template such as E5-V's, for a text or an image.
E5V = (
    "{% set part = messages[-1].content[0] %}{% if part.type == 'image' %}" + _IMAGE + "{{ '\n' }}"
    "Summary above image in one word: {% else %}{{ part.text + '\n' }}Summary above sentence in one word: {% endif %}"
)


@torch.inference_mode()
@pytest.mark.parametrize("prompt", ["", "Find an image that matches the given text."])
def test_the_template_of_the_how_to_makes_the_text_of_gme(qwen: Path, tmp_path: Path, prompt: str) -> None:
    page = (ROOT / "docs/howto/rank-and-classify-texts.md").read_text()
    template = page.partition("```jinja\n")[2].partition("```")[0]
    folder, paths = a_copy(qwen, tmp_path / "m", template), photos(tmp_path)
    model = an_embedder(folder)
    found, _ = vectors(model, paths, texts=TEXTS, **({"prompt": prompt} if prompt else {}))
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network: Any = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    for text, vector in zip(TEXTS, found, strict=True):
        whole = (
            f"<|im_start|>system\n{prompt or 'You are a helpful assistant.'}<|im_end|>\n"
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<|endoftext|>"
        )
        hidden = network(input_ids=tokenizer(whole, return_tensors="pt")["input_ids"]).last_hidden_state[0, -1]
        np.testing.assert_allclose(vector, hidden / hidden.norm(), rtol=0, atol=5e-5)
    assert len(vectors(model, paths, items=[[an_image("media://wide"), WORDS]])[0]) == 1


def test_a_template_for_either_refuses_both_together(qwen: Path, tmp_path: Path) -> None:
    model, paths = an_embedder(a_copy(qwen, tmp_path / "m", E5V)), photos(tmp_path)
    found, _ = vectors(model, paths, texts=TEXTS, images=list(paths))
    assert len(found) == 7
    with pytest.raises(
        InvalidInput, match="Item 0 has a text and an image: the chat template of tiny takes them alone"
    ):
        vectors(model, paths, items=[[an_image("media://wide"), WORDS]])


def test_a_text_that_is_too_long_is_cut_and_keeps_the_end_of_the_template(qwen: Path, tmp_path: Path) -> None:
    paths = photos(tmp_path)
    whole = vectors(an_embedder(qwen), paths, texts="ab")[1]["usage"]["prompt_tokens"]
    model = an_embedder(qwen, limits=Limits(max_tokens=whole + 20))
    long, wide = "a" * 500, [an_image("media://wide"), {"type": "text", "text": "b" * 500}]
    found, data = vectors(model, paths, texts=["ab", long], items=[wide])
    assert data["truncated"] == [1, 2]
    assert data["usage"]["prompt_tokens"] == whole + 2 * (whole + 20)
    cut, _ = vectors(model, paths, texts="a" * 22)
    np.testing.assert_allclose(found[1], cut[0], rtol=0, atol=1e-5)
    with pytest.raises(InvalidInput, match=r"the model takes \d+: that is \d+ too many"):
        vectors(an_embedder(qwen, limits=Limits(max_tokens=whole)), paths, images=["media://wide"])
    with pytest.raises(InvalidInput, match="Text 1 is empty"):
        vectors(model, paths, texts=["a", ""])


def test_the_processor_keeps_its_contract(qwen: Path, tmp_path: Path) -> None:
    model, paths = an_embedder(qwen, limits=Limits(max_items=11), max_batch=1), photos(tmp_path)
    with closing(BatchingEngine(Runners.installed())) as engine:
        done = check_processor(
            Registry.imported().processor_for(model), a_request(paths, 2), paths, other={"texts": "b", "prompt": "So:"},
            engine=lambda prompts: engine.run(model, prompts, check=lambda: None), limits=model.limits,
        )  # fmt: skip
    assert done.result.data is not None
    assert done.result.data["count"] == 11
    with pytest.raises(InvalidInput, match="12 items were given; this model accepts at most 11"):
        vectors(model, paths, texts=["a"] * 9, items=[[WORDS]] * 3)


def test_typed_placeholders_stay_text(qwen: Path, tmp_path: Path) -> None:
    paths = photos(tmp_path)
    typed = "<|image_pad|><end> <|vision_start|>"
    processor: Any = Registry.imported().processor_for(an_embedder(qwen))

    def specials(text: str, prompt: str) -> list[int]:
        """Return the special tokens of an item of an image and a text, after an instruction."""
        item = [an_image("media://wide"), {"type": "text", "text": text}]
        request = processor.request.model_validate({"items": [item], "prompt": prompt})
        [made] = processor.pre_process(request, LocalFiles(paths)).prompts
        return [token for token in made.data["inputs.input_ids"][0].tolist() if token >= 256]

    plain = specials("which?", "So:")
    assert specials(typed, "So:") == plain
    assert specials("which?", typed) == plain
    assert 257 in plain, "an image has places"


@pytest.mark.breadth
def test_a_job_goes_through_an_io_process_and_the_engine(qwen: Path, tmp_path: Path) -> None:
    model, paths = an_embedder(qwen), photos(tmp_path)
    media = {reference: LocalMedia(path) for reference, path in paths.items()}
    asked = a_request(paths, 2)
    with closing(IOPool(1, ForkOptions(4096 * MIB))) as pool, closing(BatchingEngine(Runners.installed())) as engine:
        entry = pool.entry(model)
        assert entry.problem is None
        work = Work(model, asked, media, tmp_path, tenant="one")
        with pool.open(work, check=lambda: None, say=lambda _: None) as session:
            done = session.finish(
                engine.run(model, session.prepared.prompts, check=lambda: None, cost=session.prepared.cost)
            )
    assert done.result.data is not None
    np.testing.assert_allclose(done.result.data["embeddings"], vectors(model, paths, **asked)[0], rtol=0, atol=5e-5)


def test_in_bfloat16_vectors_are_near(qwen: Path, tmp_path: Path) -> None:
    paths = photos(tmp_path)
    exact, _ = vectors(an_embedder(qwen), paths, **a_request(paths, 2))
    near, _ = vectors(an_embedder(qwen, dtype="bfloat16"), paths, **a_request(paths, 2))
    assert not np.array_equal(near, exact)
    assert (near * exact).sum(axis=1).min() > 0.99


@pytest.mark.breadth
def test_an_adapter_of_the_whole_network_is_merged(qwen: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    whole: Any = transformers.AutoModelForImageTextToText.from_pretrained(qwen, local_files_only=True)
    torch.manual_seed(3)
    tuned = peft.get_peft_model(whole, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    folder = a_copy(qwen, tmp_path / "m")
    tuned.save_pretrained(folder / "lora")
    paths = photos(tmp_path)
    merged = tuned.merge_and_unload().eval()
    merged.save_pretrained(tmp_path / "merged")
    for file in qwen.iterdir():
        if not (tmp_path / "merged" / file.name).exists():
            (tmp_path / "merged" / file.name).symlink_to(file)
    found, _ = vectors(an_embedder(folder, options={"adapter": "lora"}), paths, **a_request(paths, 2))
    expected, _ = vectors(an_embedder(tmp_path / "merged"), paths, **a_request(paths, 2))
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5)
    assert np.abs(found - vectors(an_embedder(folder), paths, **a_request(paths, 2))[0]).max() > 0.01


def problem_of(model: Model) -> str:
    """Return what `penstock models check` says of a model."""
    problem = checked_entry(Registry.installed(), Runners.installed(), model).problem
    if problem is None:
        try:
            Runners.installed().check(model)
        except ModelUnavailable as error:
            problem = str(error)
    return problem or ""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"transformer_task": "any-to-any"}, "the `transformer_task` 'any-to-any' of sentence_bert_config.json is not"),
        ({"modality_config": {"text": _ONE, "image": _ONE}}, "its `modality_config` has no `message`"),
        (
            {"modality_config": {"message": {**_ONE, "method": "get_image_features"}}},
            "its messages are not read by `forward`, up to `last_hidden_state`",
        ),
        (
            {"processing_kwargs": {"common": {}, "text": {"max_length": 3}}},
            "have common, max_length, not computed here",
        ),
        (
            {"processing_kwargs": {"chat_template": {"restore_suffix": False}}},
            "`restore_suffix` of its `chat_template`",
        ),
        ({"processing_kwargs": {"chat_template": {"max_length": 3}}}, "have max_length, not computed here"),
        ({"pooling": "attention"}, "the pooling attention is not one of mean"),
        ({}, ""),
    ],
)
def test_a_form_that_is_not_computed_is_refused_when_it_is_checked(
    qwen: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    problem = problem_of(an_embedder(a_published(qwen, tmp_path / "m", **changes)))
    assert (sentence in problem) if sentence else (problem == "")


def test_what_embeds_no_messages_is_refused_when_it_is_checked(qwen: Path, tmp_path: Path) -> None:
    own = [{"idx": 0, "name": "0", "path": "", "type": "custom_st.MultiModalTransformer"}]
    assert "modules.json has the modules custom_st.MultiModalTransformer" in problem_of(
        an_embedder(a_copy(qwen, tmp_path / "own", modules=own))
    )
    silent = a_copy(qwen, tmp_path / "silent")
    (silent / "chat_template.jinja").unlink()
    assert "has no chat template, which says how a text or an image is embedded" in problem_of(an_embedder(silent))
    special = {"prompts": {"it": "<|image_pad|>"}}
    marked = a_copy(qwen, tmp_path / "marked", config_sentence_transformers=special)
    assert "its prompt 'it' has special tokens in a system message" in problem_of(an_embedder(marked))
    lost = a_copy(qwen, tmp_path / "lost", "{% for part in messages[-1].content %}{{ part.text }}{% endfor %}")
    assert "takes no chat of a text and an image" in problem_of(an_embedder(lost))
    for kind, reason in (("colqwen2", "it makes a vector for each token"), ("blip", "reads no text without an image")):
        config = {**json.loads((qwen / "config.json").read_text()), "model_type": kind}
        refused = pytest.raises(ModelUnavailable, match=reason)
        with refused:
            Runners.installed().check(an_embedder(a_copy(qwen, tmp_path / kind, config=config)))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "text"}, ProcessorFailed),
        ({"inputs.input_ids": np.array([1, 2])}, ProcessorFailed),
        ({"inputs.input_ids": np.array([[1, 999]])}, InvalidInput),
        (
            {"inputs.image_grid_thw": np.array([[1, 2, 2]]), "inputs.pixel_values": np.zeros((4, 384), np.float32)},
            InvalidInput,
        ),
    ],
)
def test_prompts_that_do_not_fit_are_refused(qwen: Path, change: dict[str, Any], error: type[Exception]) -> None:
    runner = load(qwen, processor="text-image-embedding")
    with closing(runner), pytest.raises(error):
        runner.step([runner.admit(Prompt({"kind": "message", "inputs.input_ids": np.array([[1, 2]]), **change}))])
