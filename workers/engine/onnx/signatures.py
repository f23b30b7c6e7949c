"""The IO signature of a network in an ONNX file, from its graph and the table `onnx`, without onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.models import Model
from penstock.processors.io_signature import IOSignature
from penstock.workers.engine.onnx.description import InputSpec, OnnxDescription, read_description, sizes_freed
from penstock.workers.engine.weights import locate

#: Size of a file, at most, that is read for the names of its inputs and outputs: weights inside are read, too.
_MAX_BYTES = 2**29


def signature_of(model: Model) -> IOSignature | None:
    """Return the values of a model's prompts and outputs; None for a missing or large file.

    Raises the errors of reading the table and the file.
    """
    import onnx

    description, path = read_description(model), locate(model)
    path = path / description.file if path.is_dir() else path
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return None
    graph = sizes_freed(onnx.load(path, load_external_data=False).graph, description)
    weights = {tensor.name for tensor in graph.initializer}
    return IOSignature(
        prompt=dict(_inputs(description, [node for node in graph.input if node.name not in weights])),
        # The size to which the answer is resized.
        optional={"size": "list"} if any(spec.resize for spec in description.outputs.values()) else {},
        output=dict(_outputs(description, graph.output)),
    )


def _inputs(description: OnnxDescription, nodes: Any) -> Iterator[tuple[str, str]]:
    by_file = {spec.name or name: (name, spec) for name, spec in description.inputs.items()}
    for node in nodes:
        name, spec = by_file.get(node.name, (node.name, InputSpec()))
        yield name, _kind(node, description, channels_last=spec.layout == "NHWC", prompt=True)


def _outputs(description: OnnxDescription, nodes: Any) -> Iterator[tuple[str, str]]:
    """Yield the outputs that the runner returns: the outputs of the table `onnx`, else all arrays of numbers."""
    there = {node.name: node for node in nodes}
    if not description.outputs:
        yield from ((name, _kind(node, description)) for name, node in there.items() if _dtype(node) is not None)
    for name, spec in description.outputs.items():
        node = there.get(spec.name or name)
        if node is None:
            continue  # `load` reports it
        yield (
            name,
            {
                "argmax": "uint8 (_, ...) or uint16 (_, ...)",
                "softmax": "float32 (_, ...)",
                "none": _kind(node, description, channels_last=spec.layout == "NHWC", batch=spec.batch),
            }[spec.reduce],
        )


def _kind(
    node: Any, description: OnnxDescription, *, channels_last: bool = False, prompt: bool = False, batch: bool = True
) -> str:
    """Return the kind of an input or output, as `IOSignature` describes it; a prompt has no batch axis."""
    dtype = _dtype(node) or "array"
    if not node.type.tensor_type.HasField("shape"):
        return dtype
    sides = [str(side.dim_value) if side.dim_value > 0 else "_" for side in node.type.tensor_type.shape.dim]
    if description.rows:
        return f"{dtype} ({', '.join(['rows', *sides[1:]])})"
    axes = sides[1:] if batch else sides
    if channels_last and len(axes) == 3:
        axes = [axes[2], axes[0], axes[1]]
    if not prompt:  # a size that the graph names may be that of the exported example
        axes = ["_"] * len(axes)
    return f"{dtype} ({', '.join(axes)})" if axes else dtype


def _dtype(node: Any) -> str | None:
    """Return the dtype of prompts and outputs, float32 for one in float16; None for text, sequences and maps."""
    import onnx

    if not node.type.HasField("tensor_type"):
        return None
    try:
        name = onnx.helper.tensor_dtype_to_np_dtype(node.type.tensor_type.elem_type).name
    except KeyError:
        return None
    return {"float16": "float32", "object": None}.get(name, name)
