"""Images by the library's own pipelines: every class that AutoPipeline knows, without a branch for any.

A prompt is one call of a pipeline, with a scheduler and random numbers of its own. It is held after each step (see
`paused`): images of one size share batches, whatever their jobs, and their bits are those of a call alone.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from penstock.errors import InvalidInput, ProcessorFailed, first_line
from penstock.processors.base import Array, Output, Prompt
from penstock.processors.image_generation.calls import PARAMETERS, Task
from penstock.workers.engine.base import Continue, Done, Step
from penstock.workers.engine.diffusers.parts import diffusers
from penstock.workers.engine.diffusers.paused import Pause, Paused, Resumable
from penstock.workers.engine.torch.device import TorchDevice

#: Name of the task in a prompt. Prompts of stepped pipelines have none.
TASK = "task"
_REQUIRED = (TASK, "prompt", "width", "height", "steps", "seed")
_ARRAYS = {"image": 3, "mask": 2}


@dataclass(slots=True)
class Drawing:
    """A call under way. It advances only once from each step."""

    data: Mapping[str, Any]
    call: Resumable | None = None
    #: The number of steps made so far, and the last of them.
    made: int = 0
    last: Step | None = None


@dataclass(frozen=True, slots=True)
class DrawingState:
    """A call after a number of steps."""

    drawing: Drawing
    at: int = 0


@dataclass(frozen=True, slots=True)
class CallRunner:
    """A runner of a pipeline's calls.

    Prompts have `task`, one of `Task`, `prompt`, `width`, `height`, `steps`, `seed`, and the fields of `PARAMETERS`
    that the pipeline takes; `image` is uint8 (H, W, 3), `mask` uint8 (H, W) with white for what is painted anew.
    Outputs have `image`, uint8 (H, W, 1 or 3).
    """

    #: Pipelines of the library by task; they share their networks.
    pipelines: Mapping[Task, Any]
    modules: Sequence[nn.Module]
    device: TorchDevice
    max_batch: int
    memory_bytes: int

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return task and size."""
        return tuple(prompt.data[name] for name in (TASK, "width", "height"))

    def admit(self, prompt: Prompt) -> DrawingState:
        """Check a prompt against the signature of its pipeline."""
        data = prompt.data
        if lacking := [name for name in _REQUIRED if data.get(name) is None]:
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
        return DrawingState(Drawing(data))

    def step(self, states: Sequence[DrawingState]) -> Sequence[Step]:
        """Advance every image by a step, one after the other."""
        return [self._advance(state) for state in states]

    def close(self) -> None:
        """Free the device's memory."""
        for module in self.modules:
            self.device.free(module)

    def _pipeline(self, data: Mapping[str, Any]) -> Any:
        found = self.pipelines.get(data[TASK])
        if found is None:
            raise InvalidInput(f"this pipeline has the tasks {', '.join(self.pipelines)}, not {data[TASK]}")
        return found

    def _advance(self, state: DrawingState) -> Step:
        """Return the step of a state; the one made before if the engine repeats its latest step after an error."""
        drawing = state.drawing
        if drawing.last is not None and state.at < drawing.made:
            return drawing.last
        try:
            call = drawing.call or self._begun(drawing)
            came = call.resume()
        except BaseException:
            drawing.call = None  # it ended: the next step begins anew
            raise
        step: Step
        if isinstance(came, Paused):
            step = Continue(DrawingState(drawing, state.at + 1), done=came.done)
        else:
            step, drawing.call = Done(Output({"image": came.value})), None
        drawing.made, drawing.last = state.at + 1, step
        return step

    def _begun(self, drawing: Drawing) -> Resumable:
        """Begin a call, and repeat the steps that were made before."""
        pipeline, data, device = _branch(self._pipeline(drawing.data)), drawing.data, self.device

        def run(pause: Pause) -> Array:
            with device.running():
                return _called(pipeline, data, pause)

        drawing.call = Resumable(run)
        for _ in range(drawing.made):
            drawing.call.resume()
        return drawing.call


def _called(pipeline: Any, data: Mapping[str, Any], pause: Pause) -> Array:
    """Return the image of a pipeline's call, uint8 (H, W, 1 or 3)."""
    taken = inspect.signature(pipeline.__call__).parameters
    given = {PARAMETERS[name]: _picture(value) for name, value in data.items() if name in PARAMETERS}
    # Pipelines that follow instructions choose a size of about a megapixel themselves, unless they are told not to.
    given |= {"max_area": data["width"] * data["height"], "_auto_resize": False}
    given = {name: value for name, value in given.items() if name in taken}
    random = torch.Generator().manual_seed(data["seed"])
    held = _held(pipeline, taken, data["steps"], pause)
    try:
        made = pipeline(**given, **held, generator=random, output_type="np").images[0]
    except ValueError as error:
        raise InvalidInput(f"{type(pipeline).__name__} rejects this request: {first_line(error)}") from error
    pixels = np.asarray(made, dtype=np.float32)
    if not np.isfinite(pixels).all():
        raise ProcessorFailed("the network's answer is not a number: its weights do not fit its precision")
    return (pixels * 255).round().astype(np.uint8)


def _held(pipeline: Any, taken: Mapping[str, Any], steps: int, pause: Pause) -> dict[str, Any]:
    """Return the arguments that hold a call after each step except the last; none for a pipeline without callbacks."""
    at = 0

    def after() -> None:
        nonlocal at
        at += 1
        total = getattr(pipeline, "num_timesteps", None) or steps
        if at < total:
            pause(at / total)

    def ended(_pipeline: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        after()
        return tensors

    if "callback_on_step_end" in taken:
        return {"callback_on_step_end": ended}
    if "callback" in taken and "callback_steps" in taken:
        return {"callback": lambda *_: after(), "callback_steps": 1}
    return {}


def _branch(pipeline: Any) -> Any:
    """Return a pipeline with the same networks and a scheduler and settings of its own."""
    branch = copy.copy(pipeline)
    branch.scheduler = copy.deepcopy(pipeline.scheduler)
    branch.set_progress_bar_config(disable=True)
    return branch


def _picture(value: Any) -> Any:
    return Image.fromarray(value) if isinstance(value, np.ndarray) else value


def pipelines_of(base: Any, tasks: Mapping[Task, Any]) -> Mapping[Task, Any]:
    """Return the library's pipeline of each task, with the networks of `base`."""
    makers = {Task.TEXT: "Text2Image", Task.IMAGE: "Image2Image", Task.INPAINT: "Inpainting"}
    return {task: getattr(diffusers(), f"AutoPipelineFor{makers[task]}").from_pipe(base) for task in tasks}
