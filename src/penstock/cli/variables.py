"""Names of the `PENSTOCK_*` environment variables: those that nothing reads are found, not ignored silently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from penstock.config import Settings

_PREFIX = "PENSTOCK_"
#: Read beside the settings: by the command line, by the examples of the docs, and for the file of the settings.
_OTHERS = frozenset({"API_KEY", "CONFIG", "URL"})


def unread_variables(names: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each `PENSTOCK_*` name that nothing reads, with the nearest one that something does.

    Of `PENSTOCK_S3__REGION` only `S3` is checked here: the settings refuse an unknown part of a table by themselves.
    """
    known = {name.upper() for name in Settings.model_fields} | _OTHERS
    for name in sorted(names):
        stem = name.upper().partition("__")[0].removeprefix(_PREFIX)
        if name.upper().startswith(_PREFIX) and stem not in known:
            near = get_close_matches(stem, sorted(known), n=1)
            yield f"nothing reads {name}" + (f" (did you mean {_PREFIX}{near[0]}?)" if near else "")
