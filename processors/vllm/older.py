"""Plugins of vLLM's older forms: their constructor, and the names that methods had up to vLLM 0.18.

vLLM's own base class has translated between the forms in some releases and not in others. Here a plugin of any form
has the current one, whichever vLLM is installed.
"""

from __future__ import annotations

import inspect
from typing import Any


def make_plugin(kind: type[Any], config: Any, renderer: Any) -> Any:
    """Return the plugin of a class, also of one whose constructor has no parameter for the renderer."""
    if _takes_renderer(kind):
        return kind(config, renderer)
    return _with_renderer(kind, renderer)(config)


def pooling_params_of(plugin: Any) -> Any:
    """Return a plugin's pooling parameters, whose method was `validate_or_generate_params` up to vLLM 0.18."""
    own = [name for kind in type(plugin).__mro__ if not _is_vllms(kind) for name in vars(kind)]
    if "merge_pooling_params" not in own and "validate_or_generate_params" in own:
        return plugin.validate_or_generate_params()
    return plugin.merge_pooling_params()


def answer_of(plugin: Any, made: Any) -> Any:
    """Return the answer of what `post_process` made; older plugins wrap it in a response, whose `data` is the answer.

    The current form returns the answer itself.
    """
    wrap = getattr(plugin, "output_to_response", None)
    return wrap(made).data if callable(wrap) else made


def _takes_renderer(kind: type[Any]) -> bool:
    try:
        inspect.signature(kind).bind(None, None)
    except TypeError:
        return False
    return True


def _with_renderer(kind: type[Any], renderer: Any) -> type[Any]:
    """Return a subclass for whose `super().__init__(config)` vLLM's base class still gets the renderer it wants.

    The method resolution order puts `Between` directly before vLLM's base class.
    """
    base = next((one for one in kind.__mro__ if _is_vllms(one)), object)
    if base is object or not _takes_renderer(base):
        return kind

    class Between(base):  # type: ignore[misc, valid-type]
        def __init__(self, config: Any, renderer: Any = renderer) -> None:
            super().__init__(config, renderer)

    return type(kind.__name__, (kind, Between), {"__module__": kind.__module__})


def _is_vllms(kind: type[Any]) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in ("abc", "typing", "vllm")
