"""Checkpoints with quantised weights: checks of this machine's packages and of the config.

The library loads them with the package that made them. Weights that are not quantised keep their saved precision: the
library would cast only some of them, and mixed precisions cannot be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

from penstock.errors import ModelUnavailable

#: Packages on PyPI for each `quant_method`; for other methods the library reports missing packages.
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

#: Ends of the names of tensors beside quantised weights.
_SCALES = (
    ".SCB", ".weight_format", ".absmax", ".quant_map", ".weight_scale", ".weight_scale_inv", ".weight_packed",
    ".qweight", ".qzeros", ".scales",
)  # fmt: skip

#: Methods that would unpack their weights in the first pass, unexpectedly.
_UNPACKED = frozenset({"compressed-tensors"})


def quantisation_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the quantisation in a `config.json`, None without one."""
    text = config.get("text_config")
    found = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if found is None or isinstance(found, dict):
        return found
    raise ModelUnavailable("`quantization_config` in config.json is not an object")


def require_no_scales(names: Iterable[str]) -> None:
    """Raise `ModelUnavailable` for scales without use: the network would read quantised weights as ordinary ones."""
    scales = sorted(name for name in names if name.endswith(_SCALES))
    if scales:
        raise ModelUnavailable(
            f"its weights are quantised ({scales[0]!r} is beside them), and `quantization_config` in config.json does "
            "not say how"
        )


def stays_quantised(config: Mapping[str, Any]) -> bool:
    """Return True if weights are quantised, and stay quantised when loaded.

    Raises `ModelUnavailable` for a quantisation that cannot be loaded here.
    """
    found = quantisation_of(config)
    if found is None:
        return False
    method = str(found.get("quant_method"))
    _check_packages(method)
    from transformers.quantizers.auto import AutoHfQuantizer

    library: Any = AutoHfQuantizer  # partly typed
    try:
        # The library would read the weights as ordinary ones.
        if not library.supports_quant_method(found):
            raise ModelUnavailable(f"its weights are quantised by {method!r}, which this version of transformers lacks")
        quantizer = library.from_config(deepcopy(found), pre_quantized=True)
        quantizer.validate_environment(device_map=None)
    except (ImportError, ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        sentence = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelUnavailable(f"its weights, quantised by {method!r}, cannot be loaded here: {sentence}") from error
    return method not in _UNPACKED and not getattr(quantizer.quantization_config, "dequantize", False)


def unpacked(config: Any) -> Any:
    """Return the library's config of a network, changed to unpack weights when they are loaded."""
    text = config.get_text_config(decoder=True)
    found = getattr(config, "quantization_config", None) or getattr(text, "quantization_config", None)
    if isinstance(found, dict) and found.get("quant_method") in _UNPACKED:
        config.quantization_config = {**found, "dequantize": True}
    return config


def _check_packages(method: str) -> None:
    lacking = [package for package in PACKAGES.get(method, ()) if not _is_installed(package)]
    if lacking:
        raise ModelUnavailable(
            f"its weights are quantised by {method!r}, which needs packages that are not installed: pip install "
            f"{' '.join(lacking)}"
        )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
