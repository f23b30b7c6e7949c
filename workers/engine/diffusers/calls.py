"""Images by the library's own pipelines, without a branch for any class but those without a text.

A prompt is a call of a pipeline, with a scheduler and random numbers of its own. It is held after each step (see
`resumable`), so images of one size share batches, whatever their jobs. On a CPU an image's bits are those of a call
alone. On a GPU images that begin together with the same settings are one call: the other images change the last bits.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from penstock.errors import InvalidInput, ProcessorFailed, first_line
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.image_generation.calls import PARAMETERS, Task
from penstock.workers.engine.base import Continue, Done, Runner, Step
from penstock.workers.engine.diffusers.loop import Loop, pixels
from penstock.workers.engine.diffusers.parts import Directory, diffusers, log
from penstock.workers.engine.resumable import Pause, Paused, Resumable, Returned
from penstock.workers.engine.torch.device import TorchDevice, weights_bytes

_REQUIRED = ("task", "width", "height", "steps", "seed")
#: Further values that a prompt of a task needs; other tasks need a text.
_SUBJECTS: Mapping[str, Sequence[str]] = {Task.NOTHING: (), Task.LABEL: ("label",)}
_ARRAYS = {"image": 3, "mask": 2}
_TEXTS = ("prompt", "negative_prompt")
#: Values in which the images of one call may differ.
_OWN = (*_TEXTS, "label", "seed")


@dataclass(slots=True)
class Drawing:
    """A call under way, of an image or of several that began together. It advances only once from each step."""

    images: Sequence[Mapping[str, Any]]
    #: The number of steps made so far, and the end of the last of them.
    made: int = 0
    came: Paused | Returned | None = None
    call: Resumable | None = None
    #: True before the first step and after an error: its images may get another drawing.
    open: bool = True


@dataclass(slots=True)
class Wish:
    """An image that a prompt asks for, and its place in a drawing."""

    data: Mapping[str, Any]
    drawing: Drawing
    place: int = 0


@dataclass(frozen=True, slots=True)
class DrawingState:
    """An image after a number of steps."""

    wish: Wish
    at: int = 0


@dataclass(frozen=True, slots=True)
class CallRunner:
    """A runner of a pipeline's calls.

    Prompts have `task`, one of `Task`, `width`, `height`, `steps`, `seed`, and the fields of `PARAMETERS` that the
    pipeline takes: `prompt` or `label`, and others; `image` is uint8 (H, W, 3), `mask` uint8 (H, W) with white for what
    is painted anew. Outputs have `image`, uint8 (H, W, 1 or 3), and `truncated`, the names of texts that were cut. A
    prompt gets `previews` partial outputs: `preview` is a small image of the expected result after `step` steps.
    """

    #: Pipelines of the library by task; they share their networks.
    pipelines: Mapping[Task, Any]
    modules: Sequence[nn.Module]
    device: TorchDevice
    max_batch: int
    memory_bytes: int
    #: True: images that begin together are one call.
    together: bool
    #: Calls under way.
    calls: weakref.WeakSet[Resumable] = field(default_factory=weakref.WeakSet)

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return task and size."""
        return tuple(prompt.data[name] for name in ("task", "width", "height"))

    def admit(self, prompt: Prompt) -> DrawingState:
        """Check a prompt against the signature of its pipeline."""
        data = prompt.data
        subject = _SUBJECTS.get(data.get("task", ""), ("prompt",))
        if lacking := [name for name in (*_REQUIRED, *subject) if data.get(name) is None]:
            raise ProcessorFailed(f"a pipeline takes {', '.join(f'`{name}`' for name in lacking)}")
        pipeline = self._pipeline(data)
        taken = inspect.signature(pipeline.__call__).parameters
        for name, rank in _ARRAYS.items():
            value = data.get(name)
            if value is not None and (getattr(value, "dtype", None) != np.uint8 or value.ndim != rank):
                raise ProcessorFailed(f"a pipeline takes `{name}` as uint8 with {rank} axes")
        asked = [name for name in data if name in PARAMETERS and name not in ("width", "height")]
        if unknown := [name for name in asked if PARAMETERS[name] not in taken]:
            raise InvalidInput(f"{type(pipeline).__name__} does not take {', '.join(unknown)}")
        if "label" in data:
            _check_label(data["label"], pipeline)
        return DrawingState(Wish(data, Drawing([data])))

    def step(self, states: Sequence[DrawingState]) -> Sequence[Step]:
        """Advance every image by a step, one call after the other."""
        self._group([state for state in states if state.wish.drawing.open])
        return [self._advance(state) for state in states]

    def close(self) -> None:
        """Free the device's memory."""
        for call in list(self.calls):
            call.close()
        for module in self.modules:
            self.device.free(module)

    def _pipeline(self, data: Mapping[str, Any]) -> Any:
        found = self.pipelines.get(data["task"])
        if found is None:
            raise InvalidInput(f"this pipeline has the tasks {', '.join(self.pipelines)}, not {data['task']}")
        return found

    def _group(self, states: Sequence[DrawingState]) -> None:
        """Give images a drawing: those that begin with the same settings share one, where that gains anything."""
        groups: dict[Hashable, list[DrawingState]] = {}
        for number, state in enumerate(states):
            data = state.wish.data
            # Pipelines that edit images take several images of a call for the parts of one.
            alone = not self.together or state.at > 0 or "image" in data
            settings = tuple((name, name in _OWN or value) for name, value in sorted(data.items()))
            groups.setdefault(number if alone else settings, []).append(state)
        for group in groups.values():
            drawing = Drawing([state.wish.data for state in group], made=group[0].at)
            for place, state in enumerate(group):
                state.wish.drawing, state.wish.place = drawing, place

    def _advance(self, state: DrawingState) -> Step:
        """Return the step of a state; the latest one if the drawing is further than the state.

        It is after the step of another image of its call, and where the engine repeats a step after an error.
        """
        wish, drawing = state.wish, state.wish.drawing
        if drawing.came is None or state.at >= drawing.made:
            self._resume(drawing)
        match drawing.came:
            case Paused((done, previews)):
                here = previews[wish.place : wish.place + 1]
                partial = Output({"preview": here[0], "step": drawing.made}, partial=True) if here else None
                return Continue(DrawingState(wish, drawing.made), partial, done=done)
            case Returned(images):
                return Done(Output(images[wish.place]))
        raise AssertionError(drawing)

    def _resume(self, drawing: Drawing) -> None:
        """Run a call to the end of its next step; after an error begin it anew and repeat its steps."""
        drawing.open = False
        try:
            if drawing.call is None:
                drawing.call = self._begun(drawing.images)
                for _ in range(drawing.made):
                    drawing.call.resume()
            drawing.came = drawing.call.resume()
        except BaseException:
            drawing.call, drawing.open = None, True
            raise
        drawing.made += 1
        if isinstance(drawing.came, Returned):
            drawing.call = None

    def _begun(self, images: Sequence[Mapping[str, Any]]) -> Resumable:
        pipeline, device = self._pipeline(images[0]), self.device

        def run(pause: Pause) -> list[dict[str, Any]]:
            with device.running():
                return _called(pipeline, images, pause)

        call = Resumable(run)
        self.calls.add(call)
        return call


def _called(pipeline: Any, images: Sequence[Mapping[str, Any]], pause: Pause) -> list[dict[str, Any]]:
    """Return the outputs of a pipeline's call."""
    first, count = images[0], len(images)
    previews = first.get("previews", 0)

    def paused(made: int, total: int) -> None:
        shows = made * (previews + 1) // total > (made - 1) * (previews + 1) // total
        pause((made / total, loop.preview(count) if shows else []))

    loop = Loop(pipeline, paused)
    random = [torch.Generator().manual_seed(one["seed"]) for one in images]
    if previews or "label" in first:
        loop.watch(random)
    given = {PARAMETERS[name]: _picture(value) for name, value in first.items() if name in PARAMETERS}
    given |= {PARAMETERS[name]: [one[name] for one in images] for name in _TEXTS if name in first and count > 1}
    # Pipelines that follow instructions choose a size of about a megapixel themselves, unless they are told not to.
    given |= {"max_area": first["width"] * first["height"], "_auto_resize": False, "batch_size": count}
    if "label" in first:
        given["class_labels"] = [one["label"] for one in images]
    taken = inspect.signature(pipeline.__call__).parameters
    given = {name: value for name, value in given.items() if name in taken}
    try:
        made = loop.pipeline(**given, generator=random if count > 1 else random[0], output_type="pt").images
    except ValueError as error:
        raise InvalidInput(f"{type(pipeline).__name__} rejects this request: {first_line(error)}") from error
    found = pixels(made)
    if not found:
        raise ProcessorFailed("the network's answer is not a number: its weights do not fit its precision")
    return [{"image": image, "truncated": _cut(pipeline, data)} for image, data in zip(found, images, strict=True)]


def _cut(pipeline: Any, data: Mapping[str, Any]) -> list[str]:
    """Return the names of texts that are longer than what CLIP reads, where no other encoder reads them as well."""
    readers = [part for name, part in pipeline.components.items() if name.startswith("tokenizer") and part is not None]
    if not all(type(reader).__name__.startswith("CLIP") for reader in readers):
        return []
    texts = {name: data[name] for name in _TEXTS if name in data}
    return [
        name
        for name, text in texts.items()
        if any(len(reader(text).input_ids) > reader.model_max_length for reader in readers)
    ]


def _check_label(label: Any, pipeline: Any) -> None:
    """Raise an error for a label that the network does not know: a GPU would be lost with it."""
    count = int(pipeline.transformer.config.num_embeds_ada_norm)
    if type(label) is not int:
        raise ProcessorFailed("the network takes `label`, a whole number")
    if not 0 <= label < count:
        raise InvalidInput(f"the network knows the labels 0 to {count - 1}, not {label}")


def _picture(value: Any) -> Any:
    return Image.fromarray(value) if isinstance(value, np.ndarray) else value


def pipelines_of(base: Any, tasks: Mapping[Task, Any]) -> Mapping[Task, Any]:
    """Return the library's pipeline of each task, with the networks of `base`."""
    makers = {Task.TEXT: "Text2Image", Task.IMAGE: "Image2Image", Task.INPAINT: "Inpainting"}
    return {
        task: getattr(diffusers(), f"AutoPipelineFor{makers[task]}").from_pipe(base) if task in makers else base
        for task in tasks
    }


def load_diffusers(model: Model) -> Runner:
    """Load a directory in the record's precision; raise `ModelUnavailable` for a missing, damaged or unknown part."""
    directory = Directory.of(model)
    if (directory.path / "safety_checker").is_dir():
        log.warning("diffusers.safety_checker_left_out", model=model.name)
    device = TorchDevice.of(model)
    networks = {part: directory.network(part, device.dtype) for part in directory.networks}
    runner = CallRunner(
        pipelines_of(directory.base(networks), directory.pipeline.calls),
        list(networks.values()),
        replace(device, dtype=torch.float32),  # no precision but that of the weights
        max_batch=model.max_batch,
        memory_bytes=sum(map(weights_bytes, networks.values())),
        together=not device.is_cpu,
    )
    for module in runner.modules:
        device.place(module)
    return runner


def check_diffusers(model: Model) -> None:
    """Check the files that `load_diffusers` would load, without reading weights; raise `ModelUnavailable`."""
    Directory.of(model)
