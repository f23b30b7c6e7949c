"""Problems of a drop rule's objects: logs each problem once, and shows the first one as the problem of the rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import structlog

from penstock.client.local_files import names_beside
from penstock.config_tables import DropRule
from penstock.errors import (
    ConfigError,
    DeviceQuotaExceeded,
    NotReady,
    Overloaded,
    PenstockError,
    QueueDraining,
    QueueFull,
    StorageQuotaExceeded,
    TooManyJobs,
)
from penstock.intake.drop_inputs import DOCUMENT, field_for
from penstock.models import CatalogueEntry
from penstock.storage.drop_rules import ignored, is_product_metadata, owner, place
from penstock.workers.keeper.drop_markers import RETRY, Marker

#: Errors that pass without action: such an object waits.
_TEMPORARY = (
    DeviceQuotaExceeded, NotReady, Overloaded, QueueDraining, QueueFull, StorageQuotaExceeded, TooManyJobs,
)  # fmt: skip


def misfit(rule: DropRule, entry: CatalogueEntry | None) -> str | None:
    """Return the reason for which a model cannot take a rule's objects; documents fit every model."""
    if entry is None or rule.takes_documents:
        return None
    if entry.problem is not None and not entry.input_schema:  # nothing is known of its input
        return entry.problem
    try:
        field_for(rule, entry.input_schema)
    except ConfigError as error:
        return error.detail
    return None


#: Suffixes of a rule whose objects are documents: other files are parts of them.
_DOCUMENTS = (DOCUMENT,)
#: File names skipped in listings that are remembered, so that each is logged once; further names are not logged.
_MAX_SKIPPED = 1000
#: Skipped names of the last listing that are shown.
_MAX_SHOWN = 20

log = structlog.get_logger(__name__)


class ObjectErrors:
    """The errors of objects, by key. Safe to call from several threads."""

    def __init__(self) -> None:
        self._found: dict[str, PenstockError] = {}

    def note(self, key: str, error: Exception) -> None:
        """Store an object's error; it is logged unless the same error was logged for this object before."""
        problem = error if isinstance(error, PenstockError) else _fault(error)
        before = self._found.get(key)
        self._found[key] = problem
        if before is not None and (before.code, before.detail) == (problem.code, problem.detail):
            return
        if problem is error:
            log.warning("drop.postponed", key=key, code=problem.code, detail=problem.detail)
        else:
            log.error("drop.failed", key=key, exc_info=error)

    def clear(self, key: str) -> None:
        """Forget the error of an object."""
        self._found.pop(key, None)

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget the errors of all objects that no longer exist."""
        for key in self._found.copy().keys() - set(keys):
            self.clear(key)

    def summary(self) -> str | None:
        """Return the number of stuck objects and the first one's error; None if no object is stuck."""
        stuck = {key: error for key, error in sorted(self._found.copy().items()) if not isinstance(error, _TEMPORARY)}
        if not stuck:
            return None
        key, error = next(iter(stuck.items()))
        return f"{key}: {error.detail}" if len(stuck) == 1 else f"{len(stuck)} objects are stuck, {key}: {error.detail}"


def _fault(error: Exception) -> PenstockError:
    """Return an unexpected error as the sentence that the rule shows; the log has the details."""
    return PenstockError(f"an unexpected {type(error).__name__}; see `drop.failed` in the keeper's log")


def ignored_keys(rules: Sequence[DropRule], rule: DropRule, keys: Iterable[str], own: Collection[str]) -> list[str]:
    """Return the keys that no rule takes, for want of a suffix or as product metadata.

    Left out are the files beside the `own` objects, and files that documents may name.
    """
    of_documents = rule.suffixes == _DOCUMENTS
    found = [key for key in keys if ignored(rule, key) and (not of_documents or is_product_metadata(rule, key))]
    if not found:
        return []
    beside = {key[: len(key) - len(name)] + each for key in own for name in (key.rpartition("/")[2],)
              for names in names_beside(name) for each in names}  # fmt: skip
    return sorted(key for key in found if key not in beside and owner(rules, place(rule, key)) is None)


def failures_of(markers: Iterable[tuple[str, Marker | None]]) -> dict[str, str]:
    """Return the reasons of failed objects by key, from the error markers of objects."""
    return {key: marker.reason for key, marker in markers if marker is not None and marker.status != RETRY}


def common_failure(failures: Mapping[str, str], objects: int) -> str | None:
    """Return the reason for which all of several objects failed; None if they did not, or for other reasons."""
    reasons = set(failures.values())
    if objects < 2 or len(failures) < objects or len(reasons) != 1:
        return None
    return f"all {objects} objects failed: {reasons.pop()}"


class SkippedFiles:
    """Logs each skipped file in a rule's folder once: a link, or a name that cannot be a key."""

    def __init__(self, rule: DropRule) -> None:
        self._rule = rule
        self._logged: set[str] = set()
        self._found: list[str] = []

    def __call__(self, key: str) -> None:
        """Note a skipped name of a listing."""
        if not key.startswith(self._rule.prefix):
            return
        if len(self._found) < _MAX_SHOWN:
            self._found.append(ascii(key))
        if key in self._logged or len(self._logged) >= _MAX_SKIPPED:
            return
        self._logged.add(key)
        detail = "links and names that are too long or not UTF-8 are skipped: copy or rename the file"
        log.warning("drop.skipped", rule=self._rule.name, key=ascii(key), detail=detail)

    def take(self) -> tuple[str, ...]:
        """Return the first skipped names of the listing that just ended, and clear them."""
        found, self._found = tuple(self._found), []
        return found
