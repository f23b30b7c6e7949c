"""Questions to the API of the service."""

from __future__ import annotations

from typing import Any

import httpx2
from starlette.exceptions import HTTPException

from penstock.api.errors import error_of
from penstock.errors import ErrorReport, ServiceError

_TIMEOUT_S = 20


class Relay:
    """The API at an address. Threads may share it."""

    def __init__(self, api: str, transport: httpx2.BaseTransport | None = None) -> None:
        self._client = httpx2.Client(base_url=api, timeout=_TIMEOUT_S, transport=transport)

    def ask(self, path: str, *, key: str | None = None) -> dict[str, Any]:
        """Return the JSON of a path, asked with a key; raise the error that the API answers.

        Raises `HTTPException` (404) for a path that the API does not have, and `ServiceError` where it does not answer.
        """
        if {".", ".."} & set(path.partition("?")[0].split("/")):  # would lead to another route
            raise HTTPException(404)
        try:
            answer = self._client.get(path, headers={} if key is None else {"Authorization": f"Bearer {key}"})
            body: dict[str, Any] = answer.json()
            if answer.status_code == 200:
                return body
            report = ErrorReport.from_json(body)
        except (httpx2.HTTPError, ValueError, KeyError, AttributeError) as error:  # also for JSON of another server
            raise ServiceError("the API does not answer") from error
        raise HTTPException(404) if report.code == "not_found" else error_of(report)
