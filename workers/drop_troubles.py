"""The objects of a drop rule that could not be dealt with: each is told of once, and they are the rule's problem."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from penstock.config import DropRule
from penstock.errors import NotReady, Overloaded, PenstockError, QueueDraining, QueueFull, TooManyJobs

#: What ends by itself: such an object waits, and nobody need do anything.
_PASSING = (NotReady, Overloaded, QueueDraining, QueueFull, TooManyJobs)

#: Names that listings passed over which are remembered, so that each is told of once; of more nothing is told.
_MAX_PASSED_OVER = 1000
#: Of them those of the last listing that are shown.
_MAX_SHOWN = 20

log = structlog.get_logger(__name__)


class Troubles:
    """What is wrong with which object, by its key. May be called from several threads."""

    def __init__(self) -> None:
        self._found: dict[str, PenstockError] = {}

    def tell(self, key: str, error: Exception) -> None:
        """Note what is wrong with an object; it is logged unless the same was logged of it before."""
        trouble = error if isinstance(error, PenstockError) else _fault(error)
        before = self._found.get(key)
        self._found[key] = trouble
        if before is not None and (before.code, before.detail) == (trouble.code, trouble.detail):
            return
        if trouble is error:
            log.warning("drop.postponed", key=key, code=trouble.code, detail=trouble.detail)
        else:
            log.error("drop.failed", key=key, exc_info=error)

    def over(self, key: str) -> None:
        """Forget an object with which nothing is wrong any more."""
        self._found.pop(key, None)

    def forget_all_but(self, keys: Collection[str]) -> None:
        """Forget the objects that are there no more."""
        for key in self._found.copy().keys() - set(keys):
            self.over(key)

    def sentence(self) -> str | None:
        """Return how many objects are stuck, and what is wrong with the first of them; None for none."""
        stuck = {key: error for key, error in sorted(self._found.copy().items()) if not isinstance(error, _PASSING)}
        if not stuck:
            return None
        key, error = next(iter(stuck.items()))
        return f"{key}: {error.detail}" if len(stuck) == 1 else f"{len(stuck)} objects are stuck, {key}: {error.detail}"


def _fault(error: Exception) -> PenstockError:
    """Return a fault of ours as the sentence that the rule shows; the log has the rest."""
    return PenstockError(f"an unexpected {type(error).__name__}: the keeper's log says where (drop.failed)")


class PassedOver:
    """Logs once of each file in a rule's folder that can be no scene: a link, or a name that is no key."""

    def __init__(self, rule: DropRule) -> None:
        self._rule = rule
        self._told: set[str] = set()
        self._found: list[str] = []

    def __call__(self, key: str) -> None:
        """Take a name from a listing."""
        if not key.startswith(self._rule.prefix):
            return
        if len(self._found) < _MAX_SHOWN:
            self._found.append(ascii(key))
        if key in self._told or len(self._told) >= _MAX_PASSED_OVER:
            return
        self._told.add(key)
        detail = "links and names that are not UTF-8 or too long are passed over: copy or rename it"
        log.warning("drop.passed_over", rule=self._rule.name, key=ascii(key), detail=detail)

    def take(self) -> tuple[str, ...]:
        """Return the names of the listing that just ended, the first ones of many, and forget them."""
        found, self._found = tuple(self._found), []
        return found
