"""The media that a request names: fetched before its processor begins, but for those that may be missing and are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import InputError
from penstock.intake.references import pointing_to
from penstock.models import linked_documents, media_by_range, media_references, places_that_may_lack
from penstock.workers.job_media import JobMedia


def fetch_named(
    media: JobMedia, schema: Mapping[str, Any], request: Mapping[str, Any], *, undecided: frozenset[str] = frozenset(),
    check: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Fetch the media of a request, and allow the links of its documents; `check` is called before each fetch.

    `undecided`: media of which it is not known if this attempt reads them. Raises the error of a file that cannot be
    had with the place of the request, unless it may be missing: then the processor gets the error when it asks for it.
    """
    by_range, may_lack = media_by_range(schema, request), places_that_may_lack(schema, request)
    for place, reference in media_references(schema, request):
        check()
        try:
            with pointing_to(place):
                media.add(reference, by_range=reference in by_range, undecided=reference in undecided)
        except InputError as error:
            if error.retryable or not place.startswith(may_lack):
                raise
            media.lack(reference)
    for document in linked_documents(schema, request):
        media.allow_links(document)
