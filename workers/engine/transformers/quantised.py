"""Checkpoints with quantised weights: whether this machine can load them, and what their config must say for it.

They are loaded by the library, which hands them to the package that made them. What is not quantised keeps the
precision in which it was saved: the library casts a part of it only, and what comes of that cannot be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

from penstock.errors import ModelUnavailable

#: What must be installed for each `quant_method`, by the names on PyPI. Of others the library says it.
PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "auto-round": ("auto-round",),
        "awq": ("gptqmodel", "accelerate"),
        "bitsandbytes": ("bitsandbytes", "accelerate"),
        "compressed-tensors": ("compressed-tensors",),
        "fp8": ("accelerate",),
        "gptq": ("gptqmodel", "optimum"),
        "hqq": ("hqq",),
        "mxfp4": ("accelerate",),
        "quanto": ("optimum-quanto", "accelerate"),
        "torchao": ("torchao",),
    }
)

#: How the names of what stands beside quantised weights end.
_SCALES = (
    ".SCB", ".weight_format", ".absmax", ".quant_map", ".weight_scale", ".weight_scale_inv", ".weight_packed",
    ".qweight", ".qzeros", ".scales",
)  # fmt: skip

#: Would unpack their weights in the first pass, when nobody reckons with it.
_UNPACKED = frozenset({"compressed-tensors"})


def quantisation_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a `config.json` says of how its weights are quantised, None if they are not."""
    text = config.get("text_config")
    found = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if found is None or isinstance(found, dict):
        return found
    raise ModelUnavailable("`quantization_config` in config.json is not an object")


def require_no_scales(names: Iterable[str]) -> None:
    """Raise `ModelUnavailable` where a network has no use for scales: it would take quantised weights for others."""
    scales = sorted(name for name in names if name.endswith(_SCALES))
    if scales:
        raise ModelUnavailable(
            f"its weights are quantised ({scales[0]!r} is beside them), and `quantization_config` in config.json does "
            "not say how"
        )


def stays_quantised(config: Mapping[str, Any]) -> bool:
    """Return whether weights are quantised, and stay so when they are loaded here.

    Raises `ModelUnavailable` if they are quantised in a way that cannot be loaded here.
    """
    found = quantisation_of(config)
    if found is None:
        return False
    method = str(found.get("quant_method"))
    _check_packages(method)
    from transformers.quantizers.auto import AutoHfQuantizer

    library: Any = AutoHfQuantizer  # partly typed
    try:
        # The library would take the weights for ordinary ones.
        if not library.supports_quant_method(found):
            raise ModelUnavailable(f"its weights are quantised by {method!r}, which this version of transformers lacks")
        quantizer = library.from_config(deepcopy(found), pre_quantized=True)
        quantizer.validate_environment(device_map=None)
    except (ImportError, ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        sentence = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelUnavailable(f"its weights, quantised by {method!r}, cannot be loaded here: {sentence}") from error
    return method not in _UNPACKED and not getattr(quantizer.quantization_config, "dequantize", False)


def unpacked(config: Any) -> Any:
    """Return the library's config of a network, which is to take all its memory when it is loaded."""
    text = config.get_text_config(decoder=True)
    found = getattr(config, "quantization_config", None) or getattr(text, "quantization_config", None)
    if isinstance(found, dict) and found.get("quant_method") in _UNPACKED:
        config.quantization_config = {**found, "dequantize": True}
    return config


def _check_packages(method: str) -> None:
    lacking = [package for package in PACKAGES.get(method, ()) if not _is_installed(package)]
    if lacking:
        raise ModelUnavailable(
            f"its weights are quantised by {method!r}, which needs what is not installed: pip install "
            f"{' '.join(lacking)}"
        )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
