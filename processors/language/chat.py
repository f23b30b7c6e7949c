"""Chat templates: a conversation as the one text that a model was trained to continue.

Templates are Jinja programs in the model's directory, run in Jinja's immutable sandbox with what transformers gives
them: https://huggingface.co/docs/transformers/chat_templating
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.directory import read_config


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's template, and the special tokens that it may name."""

    template: Template
    tokens: Mapping[str, str]

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text to continue; raise `InvalidInput` with what the template says is wrong."""
        try:
            return self.template.render(messages=list(messages), add_generation_prompt=True, **self.tokens)
        except TemplateError as error:
            raise InvalidInput(f"The model's chat template refuses these messages: {error}") from error


def read_chat_template(model: Model) -> ChatTemplate | None:
    """Return the template of the model's directory, or None; raise `ModelUnavailable` for one that does not compile."""
    config = read_config(model, "tokenizer_config.json")
    path = Path(model.source) / "chat_template.jinja"
    if path.is_file():
        source: str | None = path.read_text(encoding="utf-8")
    else:  # beside it there may be a file of its own, which processors of pictures had before version 5
        source = _named(read_config(model, "chat_template.json").get("chat_template", config.get("chat_template")))
    if source is None:
        return None
    try:
        template = _environment().from_string(source)
    except TemplateError as error:
        raise ModelUnavailable(f"model {model.name!r}: its chat template is broken: {error}") from error
    return ChatTemplate(template, {name: _token(config.get(name)) for name in _TOKENS if config.get(name) is not None})


_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _named(given: Any) -> str | None:
    """Return the template called `default` where a file has several."""
    if isinstance(given, list):
        given = next((entry["template"] for entry in given if entry.get("name") == "default"), None)
    return given if isinstance(given, str) else None


def _token(given: Any) -> str:
    return str(given["content"] if isinstance(given, dict) else given)


class _Generation(Extension):
    """Lets templates mark what the assistant wrote: `{% generation %}...{% endgeneration %}` is what stands inside."""

    tags = {"generation"}  # noqa: RUF012  (an attribute of instances, says the base class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    # Not HTML: a language model reads this, and `tojson` must not escape anything.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now(tz=UTC).strftime(form)
    return environment


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refuse(message: str) -> None:
    raise TemplateError(message)
