"""Model entries in the object store, where they outlive Redis and need no worker.

A model has at most two objects, each with one kind of writer, so that no put needs a condition:

- `catalogue/published/MODEL.json`: the entry that an operator published or withdrew (`penstock models publish`);
- `catalogue/checked/MODEL.json`: the last check of a worker, put and deleted by the active keeper.

Of the two the later one counts, by the object store's own times. They lie outside a tenant's prefix, because all
tenants share the models.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import structlog
from pydantic import ValidationError

from penstock.errors import MediaTooLarge
from penstock.formats import WRITES, is_readable, version_of
from penstock.models import CatalogueEntry
from penstock.storage.journal.json_objects import put_json, read_json
from penstock.storage.journal.promotions import Promotion, ServedCatalogue, read_promotions, with_promotions
from penstock.storage.objects.base import ObjectInfo, ObjectStore
from penstock.storage.redis.catalogues import Known, is_settled

PREFIX = "catalogue/"
PUBLISHED, CHECKED = f"{PREFIX}published/", f"{PREFIX}checked/"
#: Bytes of one object, and objects read, at most.
_LIMIT_BYTES, _MAX_OBJECTS = 4_000_000, 2000
#: Objects read at once.
_READERS = 8
#: Seconds between two listings.
FRESH_S = 10.0

UNCHECKED = "no worker has checked its files yet"
UNSERVED = "no worker serves it at the moment"
#: The remedy for a stored problem: no worker starts for a model whose jobs are refused.
REPUBLISH = "no worker is there to check it again; once it is corrected, run `penstock models publish"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One object: the entry of a model, or the mark that an operator withdrew the model."""

    name: str
    etag: str
    #: Seconds since the epoch, by the object store's clock.
    modified_s: float
    #: None for a withdrawn model, and for an object that this release cannot read.
    entry: CatalogueEntry | None
    #: The operator who published or withdrew it; `worker` for a check.
    owner: str = ""
    #: True where the object says that the model was withdrawn.
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class StoredCatalogue:
    """All objects by model."""

    published: Mapping[str, StoredModel]
    checked: Mapping[str, StoredModel]
    #: Promoted aliases.
    promotions: Mapping[str, Promotion] = field(default_factory=dict)

    def entry(self, name: str) -> CatalogueEntry | None:
        """Return the entry that counts without a living worker, with the reason why it is not ready; None without one.

        It is the later of the published entry and the check; where both have the same time, the published one.
        """
        published, checked = self.published.get(name), self.checked.get(name)
        if published is None or (published.entry is None and not published.withdrawn):
            found = checked
        elif checked is None or checked.entry is None or published.modified_s >= checked.modified_s:
            found = published
        else:
            found = checked
        if found is None or found.entry is None:
            return None
        known = found is checked or (checked is not None and _passed(checked.entry, found.entry))
        return found.entry.model_copy(update={"ready": False, "note": UNSERVED if known else UNCHECKED})

    def has(self, name: str) -> bool:
        """Return True for a model that is stored, also where it was withdrawn."""
        return self.entry(name) is not None or self.withdrawn(name)

    def withdrawn(self, name: str) -> bool:
        """Return True for a model that was withdrawn and not checked or published again since."""
        published = self.published.get(name)
        return published is not None and published.withdrawn and self.entry(name) is None


EMPTY = StoredCatalogue({}, {})


def merged(known: Known, stored: StoredCatalogue) -> ServedCatalogue:
    """Return the models of the service: the entries of living workers, then the stored ones; with promoted aliases.

    As long as a worker checks or fetches a model, the stored entry counts, unless it has a problem: the check may end
    that. An entry in Redis whose workers are gone counts only where the object store has no object of the model. A
    stored model whose name is an alias of a living one does not count.
    """
    found: dict[str, CatalogueEntry] = {}
    aliases = {alias for name in known.living for alias in known.entries[name].aliases}
    for name in sorted({*known.entries, *stored.published, *stored.checked} - (aliases - known.living)):
        entry = known.entries.get(name)
        lasting = None if entry is not None and is_settled(name, known) else stored.entry(name)
        if lasting is not None and lasting.problem is not None and name in known.living:
            lasting = None
        if lasting is not None:
            note = entry.problem if entry is not None and name in known.living else lasting.note
            problem = lasting.problem and f"{lasting.problem} ({REPUBLISH} {name}`)"
            found[name] = lasting.model_copy(update={"note": note or lasting.note, "problem": problem})
        elif entry is not None and (name in known.living or not stored.withdrawn(name)):
            found[name] = entry
    return with_promotions(found, stored.promotions)


def put_published(store: ObjectStore, entry: CatalogueEntry, *, owner: str) -> None:
    """Publish a model: `entry` counts until a worker has checked the model."""
    _put(store, f"{PUBLISHED}{entry.name}.json", {"owner": owner, "entry": _document(entry)})


def withdraw(store: ObjectStore, name: str, *, owner: str) -> bool:
    """Withdraw a model and forget its last check; return False for a model that the object store does not have.

    Living workers that serve the model go on; their checks are not stored until it is published again. Safe to repeat.
    """
    if not read_stored(store).has(name):
        return False
    store.delete(f"{CHECKED}{name}.json")
    _put(store, f"{PUBLISHED}{name}.json", {"owner": owner, "withdrawn": True})
    return True


def store_checks(store: ObjectStore, known: Known, left: Iterable[str], stored: StoredCatalogue) -> int:
    """Put the checks of living workers that differ from the stored ones; delete those of models that left.

    Return the number of changed objects. Published entries stay. A problem is put again where the same revision was
    published after it, and a check of a withdrawn model is not put.
    """
    changed = 0
    for name in known.living:
        published = stored.published.get(name)
        if not is_settled(name, known) or (published is not None and published.withdrawn):
            continue
        entry, before = known.entries[name], stored.checked.get(name)
        if (
            before is None
            or before.entry is None
            or _document(before.entry) != _document(entry)
            or _fails(entry, before, published)
        ):
            _put(store, f"{CHECKED}{name}.json", {"owner": "worker", "entry": _document(entry)})
            changed += 1
    for name in left:
        if name in stored.checked and name not in known.entries:
            store.delete(f"{CHECKED}{name}.json")
            changed += 1
    return changed


def read_stored(store: ObjectStore, before: StoredCatalogue = EMPTY) -> StoredCatalogue:
    """List the objects and read those that changed since `before`. Log and skip objects that cannot be read."""
    old = {f"{PUBLISHED}{name}.json": found for name, found in before.published.items()}
    old |= {f"{CHECKED}{name}.json": found for name, found in before.checked.items()}
    infos = [info for info in islice(store.list(PREFIX), _MAX_OBJECTS) if info.key.endswith(".json")]
    same = {
        info.key: found
        for info in infos
        if (found := old.get(info.key)) and (found.etag, found.modified_s) == (info.etag, info.modified_s)
    }
    changed = [info for info in infos if info.key not in same]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="stored-models") as pool:
        news = zip((info.key for info in changed), pool.map(lambda info: _read(store, info), changed), strict=True)
        current = {**same, **{key: each for key, each in news if each is not None}}
    return StoredCatalogue(
        {each.name: each for key, each in current.items() if key.startswith(PUBLISHED)},
        {each.name: each for key, each in current.items() if key.startswith(CHECKED)},
        read_promotions(store, before.promotions),
    )


class StoredModels:
    """A cache of the stored catalogue: at most one listing per `FRESH_S`. Safe to use from many threads."""

    def __init__(self, store: ObjectStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at_s: float | None = None
        #: The catalogue as last read.
        self.latest = EMPTY

    @property
    def age_s(self) -> float:
        """Seconds since the last reading began; infinite before the first."""
        return float("inf") if self._read_at_s is None else self._clock() - self._read_at_s

    def read(self, *, fresh_s: float = FRESH_S) -> StoredCatalogue:
        """Return the catalogue, at most `fresh_s` old; raise `ObjectStoreUnavailable` if it cannot be read."""
        with self._lock:
            if self.age_s >= fresh_s:
                begun_s = self._clock()
                self.latest = read_stored(self._store, self.latest)
                self._read_at_s = begun_s
            return self.latest


def _fails(entry: CatalogueEntry, before: StoredModel, published: StoredModel | None) -> bool:
    """Return True for a problem whose stored check is older than the published entry of the same revision."""
    if entry.problem is None or published is None or published.entry is None:
        return False
    return published.entry.revision == entry.revision and published.modified_s >= before.modified_s


def _passed(check: CatalogueEntry | None, entry: CatalogueEntry) -> bool:
    return check is not None and check.problem is None and check.revision == entry.revision


def _document(entry: CatalogueEntry) -> dict[str, Any]:
    return {name: value for name, value in entry.to_stored().items() if name != "ready"}


def _put(store: ObjectStore, key: str, document: Mapping[str, Any]) -> None:
    put_json(store, key, {"version": WRITES, **document})


def _read(store: ObjectStore, info: ObjectInfo) -> StoredModel | None:
    """Return an object; without an entry, and logged, where it is damaged or of a newer format; None if it is gone."""
    name = info.key.rpartition("/")[2].removesuffix(".json")
    try:
        document = read_json(store, info.key, limit_bytes=_LIMIT_BYTES)
        if document is None:
            return None
        if not is_readable(version_of(document)):
            log.warning("stored_model.skipped", key=info.key, version=version_of(document))
            return StoredModel(name, info.etag, info.modified_s, None)
        gone = document.get("withdrawn") is True
        entry = None if gone else CatalogueEntry.of_stored(document["entry"])
        return StoredModel(name, info.etag, info.modified_s, entry, str(document.get("owner", "")), gone)
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError, MediaTooLarge) as error:
        log.warning("stored_model.skipped", key=info.key, error=type(error).__name__)
        return StoredModel(name, info.etag, info.modified_s, None)
