"""The tools beside the models, for agents without the Tasks extension and for files: `penstock_wait` and its like."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from mcp_types import CallToolResult, Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from penstock.client import AsyncClient, ClientError
from penstock.mcp import answers

#: Seconds that one call waits, at most: many clients give up after a minute.
LONGEST_S, USUAL_S = 55, 50
#: Bytes of a file inside of a call, at most.
MAX_INLINE_BYTES: Final = 2 << 20


class Arguments(BaseModel):
    """The arguments of a tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Submit(Arguments):
    """Submit a job and return its id at once, without waiting for the result."""

    model: str = Field(description="Name of the model: the name of its tool.")
    input: dict[str, Any] = Field(description="The model's input: the arguments of its tool.")


class Wait(Arguments):
    """Wait for a job's end and return its result; returns the progress of a job that still runs."""

    job_id: str = Field(description="Id of the job.")
    seconds: float = Field(default=USUAL_S, ge=0, le=LONGEST_S, description="Seconds to wait, at most.")


class Cancel(Arguments):
    """Cancel a job."""

    job_id: str = Field(description="Id of the job.")


class Upload(Arguments):
    """Upload a small file and return a media:// reference for the media fields of models."""

    name: str = Field(description="Name of the file, such as photo.jpg.", pattern=r"^[^/\\\x00]{1,200}$")
    text: str | None = Field(default=None, description="The file's content, for text.")
    base64: str | None = Field(default=None, description="The file's content in base64, 2 MiB at most.")


class UploadPath(Upload):
    """Upload a file of this machine, or a small one in the call, and return a media:// reference for media fields."""

    name: str = Field(default="", description="Name of a file in the call.", pattern=r"^[^/\\\x00]{0,200}$")
    path: str | None = Field(default=None, description="Path of a file below the folder that agents may read.")


class Usage(Arguments):
    """Show the jobs, device seconds, bytes, tokens and pixels of each day and model."""

    first: date | None = Field(default=None, description="First day (UTC); default: 30 days before the last.")
    last: date | None = Field(default=None, description="Last day (UTC); default: today.")


class Tools:
    """The tools beside the models. Agents read files below `folder`; None = no files of this machine."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._kinds: Mapping[str, type[Arguments]] = {
            "penstock_submit": Submit,
            "penstock_wait": Wait,
            "penstock_cancel": Cancel,
            "penstock_upload": Upload if folder is None else UploadPath,
            "penstock_usage": Usage,
        }

    def listed(self) -> list[Tool]:
        """Return the tools."""
        return [
            Tool(
                name=name,
                description=kind.__doc__,
                input_schema=kind.model_json_schema(),
                annotations=ToolAnnotations(read_only_hint=kind in (Wait, Usage), destructive_hint=False),
            )
            for name, kind in self._kinds.items()
        ]

    def arguments(self, name: str, given: Mapping[str, Any]) -> Arguments | None:
        """Return the arguments of a tool; None for another name. Raises pydantic's `ValidationError`."""
        kind = self._kinds.get(name)
        return None if kind is None else kind.model_validate(given)

    async def upload(self, client: AsyncClient, wanted: Upload) -> CallToolResult:
        """Upload a file; raise `ClientError` for one that is not given, too large or outside of the folder."""
        path = wanted.path if isinstance(wanted, UploadPath) else None
        if sum(each is not None for each in (wanted.text, wanted.base64, path)) != 1:
            raise ClientError("give the file's content as one of `text` and `base64`, or its `path` where that exists")
        if path is not None and self._folder is not None:
            source = _below(self._folder, path)
            return _uploaded(source.name, await client.upload(source))
        content = _content(wanted)
        with tempfile.TemporaryDirectory(prefix="penstock-mcp-") as folder:
            source = Path(folder, wanted.name)
            try:
                source.write_bytes(content)
            except (OSError, ValueError) as error:
                raise ClientError(f"`name` {wanted.name!r} is no name of a file") from error
            return _uploaded(wanted.name, await client.upload(source))


def _below(folder: Path, path: str) -> Path:
    try:
        found = (folder / path).resolve()
    except (OSError, ValueError) as error:
        raise ClientError(f"{path!r} is no path") from error
    if not found.is_relative_to(folder):
        raise ClientError(f"{path} is outside of {folder}, the folder that agents may read")
    if not found.is_file():
        raise ClientError(f"there is no file {path} in {folder}")
    return found


def _content(wanted: Upload) -> bytes:
    try:
        content = base64.b64decode(wanted.base64, validate=True) if wanted.base64 else (wanted.text or "").encode()
    except (binascii.Error, ValueError) as error:
        raise ClientError(f"`base64` cannot be decoded: {error}") from error
    if len(content) > MAX_INLINE_BYTES:
        raise ClientError(
            f"the file has {len(content)} bytes; a call takes {MAX_INLINE_BYTES} at most: give an https:// address in "
            "the model's field, or upload it with `penstock` or the HTTP API"
        )
    return content


def _uploaded(name: str, reference: str) -> CallToolResult:
    return answers.said({"reference": reference, "name": name}, f"{name} is {reference}")
