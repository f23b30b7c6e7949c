"""Chat templates: programs that render a conversation as the text that a model was trained to continue.

Templates are Jinja programs in the model's directory. They run in Jinja's immutable sandbox, with the same functions
and filters as in transformers: https://huggingface.co/docs/transformers/chat_templating
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

_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's chat template, and the special tokens that it may use by name."""

    template: Template
    tokens: Mapping[str, str]

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text to continue; raise `InvalidInput` with the template's reason if it rejects the messages."""
        try:
            return self.template.render(messages=list(messages), add_generation_prompt=True, **self.tokens)
        except TemplateError as error:
            raise InvalidInput(f"The model's chat template rejects these messages: {error}") from error


def read_chat_template(model: Model) -> ChatTemplate | None:
    """Return the template of the model's directory, or None; raise `ModelUnavailable` for one that does not compile."""
    config = read_config(model, "tokenizer_config.json")
    path = Path(model.source) / "chat_template.jinja"
    if path.is_file():
        source: str | None = path.read_text(encoding="utf-8-sig")
    else:  # chat_template.json: where image processors kept the template before transformers 5
        source = _named(read_config(model, "chat_template.json").get("chat_template", config.get("chat_template")))
    if source is None:
        return None
    try:
        template = _environment().from_string(source)
    except TemplateError as error:
        raise ModelUnavailable(f"model {model.name!r}: its chat template is broken: {error}") from error
    return ChatTemplate(template, {name: _token(config.get(name)) for name in _TOKENS if config.get(name) is not None})


def _named(given: Any) -> str | None:
    """Return the template called `default` where a file has several."""
    if isinstance(given, list):
        given = next((entry["template"] for entry in given if entry.get("name") == "default"), None)
    return given if isinstance(given, str) else None


def _token(given: Any) -> str:
    return str(given["content"] if isinstance(given, dict) else given)


class _Generation(Extension):
    """The tag `{% generation %}...{% endgeneration %}` around the assistant's text; it renders its content."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares an instance attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    # The text is not HTML: `tojson` must not escape anything.
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
