"""Trials of model types: a tiny network with random weights answers through our runner as through transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Continue, Runner
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.transformers.supported_types import ALONE, BATCHED, EQUAL, ways
from penstock.workers.engine.transformers.tasks import Task
from penstock.workers.engine.transformers.texts import TextRunner
from tests.support.hub import a_model, finish, finish_states
from tests.support.tiny_types import GAINS, SCORED, small, small_image

Array = npt.NDArray[Any]
NEW = 8
#: Processors by task, where they have another name.
_PROCESSORS = {Task.SEMANTIC_SEGMENTATION: "image-segmentation"}
LABELS = {0: "bad", 1: "fair", 2: "good"}
#: Names of the weights of a class token.
_CLASS = re.compile(r"cls_token|class_embedding")
_POOLINGS = ("pooler", "cls", "mean", "patches")


class Different(AssertionError):
    """Our numbers are not those of the library."""


def record(folder: Path, task: Task, **options: Any) -> Model:
    """Return the record of a model that may be of any type."""
    options = {**options, "untried": True}
    return a_model(folder, name="tiny", processor=processor_of(task), max_batch=4, options=options)


def processor_of(task: Task) -> str:
    """Return the name of the processor of a task."""
    return _PROCESSORS.get(task, task.value)


def saved(network: Any, folder: Path) -> Any:
    """Save a network whose weights are not all alike; return it."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.15)
    network.eval().save_pretrained(folder)
    return network


def spread(network: Any, folder: Path, gain: float = 1.6) -> None:
    """Save a network of images whose weights keep the size of the numbers from layer to layer."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):  # some types begin with zeros
                module.weight.fill_(1.0)
        for parameter in network.parameters():
            random = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if parameter.ndim > 1:
                parameter.copy_(random * gain / parameter[0].numel() ** 0.5)
            else:
                parameter.add_(random * 0.1)
    network.eval().save_pretrained(folder)


def loaded(folder: Path, task: Task, **options: Any) -> Runner:
    """Check and load a directory as a worker does."""
    model = record(folder, task, **options)
    Runners.installed().check(model)
    return Runners.installed().load(model)


def compared(ours: Sequence[Array], theirs: Sequence[Array], atol: float = 2e-5) -> None:
    """Raise `Different` unless all arrays are equal, to the size of their numbers, and not all the same."""
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            raise Different(f"its shape is {one.shape}, the library's {other.shape}")
        scale = max(1.0, float(np.abs(other).max()))
        if not np.isfinite(other).all():
            raise Different("a tiny network of it makes numbers that are not finite")
        if float(np.abs(one - other).max()) > atol * scale:
            raise Different(f"its numbers are up to {np.abs(one - other).max() / scale:.1g} from the library's")
    if all(np.allclose(theirs[0], other, atol=1e-6) for other in theirs[1:]):
        raise Different("a tiny network of it answers the same to everything")


def texts() -> list[Array]:
    """Return three texts of different lengths that share a batch."""
    random = np.random.default_rng(1)
    return [random.integers(5, 90, length) for length in (7, 12, 3)]


def _inputs(ids: Array) -> dict[str, Any]:
    return {"input_ids": torch.tensor(ids)[None], "attention_mask": torch.ones((1, len(ids)), dtype=torch.int64)}


def _library(network: Any, ids: Array) -> Any:
    """Return the library's answer to one text; a network without masks takes the tokens alone."""
    try:
        return network(**_inputs(ids))
    except TypeError as error:
        if "attention_mask" not in str(error):
            raise
        return network(input_ids=torch.tensor(ids)[None])


@torch.inference_mode()
def _texts(task: Task, kind: str, folder: Path, auto: Any, read: Callable[[Any], Array], **more: Any) -> list[str]:
    config = small(kind, SCORED.get(kind), **more)
    for one in {id(one): one for one in (config, config.get_text_config())}.values():
        if getattr(one, "pad_token_id", None) is None:
            one.pad_token_id = 0
    saved(auto.from_config(config), folder)
    runner, network = loaded(folder, task), auto.from_pretrained(folder).eval()
    assert isinstance(runner, TextRunner)
    name = "embedding" if task is Task.TEXT_EMBEDDING else "logits"
    end = [config.eos_token_id] if config.is_encoder_decoder else []  # where they read their vector
    given = [np.array([*ids, *end]) for ids in texts()]
    theirs = [read(_library(network, ids)) for ids in given]
    prompts = [Prompt({"input_ids": ids}) for ids in given]
    compared([finish(runner, prompt)[0].data[name] for prompt in prompts], theirs)
    padding = replace(runner, padding=0)  # the runner takes texts one by one where the file says so
    try:
        compared([output.data[name] for output in finish(padding, *prompts)], theirs, atol=5e-5)
        found = [BATCHED, ALONE]
    except Exception:  # padding changes the answer, or breaks the network
        found = [ALONE]
    if found == ways(task, kind):
        compared([output.data[name] for output in finish(runner, *prompts)], theirs, atol=5e-5)
    return found


def text_embedding(kind: str, folder: Path) -> list[str]:
    """Compare means of the last vectors, of length 1."""

    def read(output: Any) -> Array:
        mean = output.last_hidden_state[0].mean(dim=0)
        return np.asarray((mean / mean.norm()).float())

    return _texts(Task.TEXT_EMBEDDING, kind, folder, transformers.AutoModel, read)


def text_classification(kind: str, folder: Path) -> list[str]:
    """Compare the scores of three labels."""

    def read(output: Any) -> Array:
        return np.asarray(output.logits[0].float())

    auto = transformers.AutoModelForSequenceClassification
    return _texts(Task.TEXT_CLASSIFICATION, kind, folder, auto, read, id2label=LABELS)


def _pictures(channels: int, side: int) -> list[Array]:
    """Return two pictures of large shapes and some noise."""
    random = np.random.default_rng(2)
    coarse = [2 * random.standard_normal((channels, 4, 4)) + number for number in range(2)]
    shapes = [np.kron(one, np.ones((side // 4, side // 4))) for one in coarse]
    return [(one + random.standard_normal(one.shape) * 0.3).astype(np.float32) for one in shapes]


def _both(runner: Runner, name: str, prompts: Sequence[Prompt], theirs: Sequence[Array]) -> None:
    """Compare each alone, and all in one batch: deep networks of random weights make much of the last bits."""
    compared([finish(runner, one)[0].data[name] for one in prompts], theirs, atol=2e-4)
    compared([one.data[name] for one in finish(runner, *prompts)], theirs, atol=1e-3)


def _of_image(kind: str, folder: Path, auto: Any, **more: Any) -> tuple[Any, list[Array]]:
    config = small_image(kind, **more)
    config.architectures = config.architectures or []  # the library loops over it where a type has two networks
    spread(auto.from_config(config), folder, GAINS.get(kind, 1.6))
    inner = getattr(config, "vision_config", config)
    return auto.from_pretrained(folder).eval(), _pictures(getattr(inner, "num_channels", 3), 64)


@torch.inference_mode()
def image_classification(kind: str, folder: Path) -> list[str]:
    """Compare the scores of labels, of two pictures of one batch."""
    network, pictures = _of_image(kind, folder, transformers.AutoModelForImageClassification, id2label=LABELS)
    runner = loaded(folder, Task.IMAGE_CLASSIFICATION)
    theirs = [np.asarray(network(pixel_values=torch.tensor(one)[None]).logits[0]) for one in pictures]
    _both(runner, "logits", _pixels(pictures), theirs)
    return [EQUAL]


@torch.inference_mode()
def semantic_segmentation(kind: str, folder: Path) -> list[str]:
    """Compare the probabilities of classes, enlarged to the picture as the library's image processors enlarge them."""
    network, pictures = _of_image(kind, folder, transformers.AutoModelForSemanticSegmentation, id2label=LABELS)
    runner = loaded(folder, Task.SEMANTIC_SEGMENTATION)
    theirs = []
    for one in pictures:
        logits = network(pixel_values=torch.tensor(one)[None]).logits
        whole = torch.nn.functional.interpolate(logits, size=one.shape[1:], mode="bilinear", align_corners=False)
        theirs.append(np.asarray(whole.softmax(dim=1)[0]))
    _both(runner, "probability", _pixels(pictures), theirs)
    return [EQUAL]


@torch.inference_mode()
def depth_estimation(kind: str, folder: Path) -> list[str]:
    """Compare depths."""
    network, pictures = _of_image(kind, folder, transformers.AutoModelForDepthEstimation)
    runner = loaded(folder, Task.DEPTH_ESTIMATION)
    theirs = [np.asarray(network(pixel_values=torch.tensor(one)[None]).predicted_depth[0]) for one in pictures]
    _both(runner, "depth", _pixels(pictures), theirs)
    return [EQUAL]


def _pixels(pictures: Sequence[Array]) -> list[Prompt]:
    return [Prompt({"pixels": one}) for one in pictures]


@torch.inference_mode()
def image_embedding(kind: str, folder: Path) -> list[str]:
    """Compare the vectors of all poolings; return those that are equal."""
    network, pictures = _of_image(kind, folder, transformers.AutoModel)
    found, problem = [], None
    for pooling in _POOLINGS:
        try:
            theirs = [_pooled(network, torch.tensor(one)[None], pooling) for one in pictures]
            runner = loaded(folder, Task.IMAGE_EMBEDDING, pooling=pooling, normalize=False)
            _both(runner, "embedding", _pixels(pictures), theirs)
        except Exception as error:
            problem = problem or error
        else:
            found.append(pooling)
    if not found and problem is not None:
        raise problem
    return found


def _pooled(network: Any, pixels: torch.Tensor, pooling: str) -> Array:
    if pooling == "pooler":
        features = getattr(network, "get_image_features", network)(pixel_values=pixels)
        vectors = features if isinstance(features, torch.Tensor) else features.pooler_output
        return np.asarray(vectors[0]).reshape(-1)
    hidden = np.asarray(network(pixel_values=pixels).last_hidden_state[0])
    if pooling == "cls":
        if hidden.ndim != 2 or not any(_CLASS.search(name) for name, _ in network.named_parameters()):
            raise Different("its network has no class token")
        return np.asarray(hidden[0])
    if pooling == "mean":
        return np.asarray(hidden.mean(axis=0) if hidden.ndim == 2 else hidden.mean(axis=(1, 2)))
    if hidden.ndim == 3:
        return hidden
    side = 64 // network.config.patch_size
    return hidden[-side * side :].T.reshape(-1, side, side)


@torch.inference_mode()
def audio_classification(kind: str, folder: Path) -> list[str]:
    """Compare the scores of labels."""
    auto = transformers.AutoModelForAudioClassification
    network = saved(auto.from_config(small(kind, id2label=LABELS)), folder)
    network, runner = auto.from_pretrained(folder).eval(), loaded(folder, Task.AUDIO_CLASSIFICATION)
    config, random = network.config, np.random.default_rng(2)
    shape = (config.max_length, config.num_mel_bins) if hasattr(config, "num_mel_bins") else (8000,)
    sounds = [random.standard_normal(shape).astype(np.float32) for _ in range(2)]
    theirs = [np.asarray(network(input_values=torch.tensor(one)[None]).logits[0]) for one in sounds]
    _both(runner, "logits", [Prompt({"sound": one}) for one in sounds], theirs)
    return [EQUAL]


def language_network(kind: str, folder: Path) -> Any:
    """Save a tiny network that continues or answers texts; return its class of the library."""
    torch.manual_seed(3)
    config = small(kind)
    both = config.is_encoder_decoder and type(config) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    auto = transformers.AutoModelForSeq2SeqLM if both else transformers.AutoModelForCausalLM
    network = auto.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    network.generation_config.max_length = None
    network.save_pretrained(folder)
    return auto


def text_generation(kind: str, folder: Path) -> list[str]:
    """Compare greedy tokens, alone and beside others that begin a step later."""
    auto = language_network(kind, folder)
    runner, prompts = loaded(folder, Task.TEXT_GENERATION), texts()
    alone = [finished(runner, [runner.admit(asked(ids))])[0] for ids in prompts]
    expected = [generated(auto, folder, ids) for ids in prompts]
    if alone != expected:
        raise Different("it makes other tokens than the library's `generate`")
    first = runner.step([runner.admit(asked(prompts[0]))])[0]
    if isinstance(first, Continue):
        together = finished(runner, [first.state, *(runner.admit(asked(ids)) for ids in prompts[1:])])
        if together != alone:
            raise Different("beside other texts it makes other tokens")
    runner.close()
    return [EQUAL]


def asked(ids: Array) -> Prompt:
    """Return a prompt for a few greedy tokens."""
    return Prompt({"input_ids": ids, "max_new_tokens": NEW, "temperature": 0.0, "top_p": 1.0, "seed": 0})


def finished(runner: Runner, states: Sequence[Any]) -> list[list[int]]:
    """Return the new tokens of all states."""
    return [list(output.data["token_ids"]) for output in finish_states(runner, states)]


def generated(auto: Any, source: Path, ids: Array) -> list[int]:
    """Return the library's new tokens up to the first end."""
    network = auto.from_pretrained(source).eval()
    with torch.inference_mode():
        found = network.generate(torch.tensor(ids)[None], max_new_tokens=NEW, do_sample=False, num_beams=1)[0].tolist()
    ends = network.generation_config.eos_token_id
    known = {ends} if isinstance(ends, int) else set(ends or ())
    new = found[1:] if auto is transformers.AutoModelForSeq2SeqLM else found[len(ids) :]
    return new[: next((place for place, token in enumerate(new) if token in known), len(new))]


#: The trial of a type by task: writes a directory there, and returns the ways that are equal.
TRIALS: Mapping[Task, Callable[[str, Path], list[str]]] = {
    Task.AUDIO_CLASSIFICATION: audio_classification,
    Task.DEPTH_ESTIMATION: depth_estimation,
    Task.IMAGE_CLASSIFICATION: image_classification,
    Task.IMAGE_EMBEDDING: image_embedding,
    Task.SEMANTIC_SEGMENTATION: semantic_segmentation,
    Task.TEXT_CLASSIFICATION: text_classification,
    Task.TEXT_EMBEDDING: text_embedding,
    Task.TEXT_GENERATION: text_generation,
}
