"""Grouped puts: the puts of flows that wait at the same time share a hop to a thread, and what the store can share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from penstock.errors import PenstockError
from penstock.storage.objects.base import ObjectInfo, ObjectStore, Put, put_one

#: Groups in progress. The puts of later flows wait for the end of one, and are the next group.
GROUPS = 2
#: Puts of one group.
MAX_PUTS = 64

_Waiting = tuple[ObjectStore, Put, "asyncio.Future[ObjectInfo]"]


class GroupedPuts:
    """Puts small objects in groups. For the event loop only."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._in_progress = 0

    async def put(self, objects: ObjectStore, put: Put) -> ObjectInfo:
        """Store an object; raise the errors of `put_bytes`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ObjectInfo] = loop.create_future()
        self._waiting.append((objects, put, answer))
        if self._in_progress < GROUPS:
            loop.call_soon(self._begin)  # with the puts of this turn of the loop
        return await answer

    def _begin(self) -> None:
        if not self._waiting or self._in_progress >= GROUPS:
            return
        objects = self._waiting[0][0]
        group = [each for each in self._waiting if each[0] is objects][:MAX_PUTS]
        self._waiting = [each for each in self._waiting if each not in group]
        self._in_progress += 1
        puts = [put for _, put, _ in group]
        hop = asyncio.get_running_loop().run_in_executor(None, _put_all, objects, puts)
        hop.add_done_callback(partial(self._end, group))

    def _end(self, group: Sequence[_Waiting], hop: asyncio.Future[Sequence[ObjectInfo | PenstockError]]) -> None:
        self._in_progress -= 1
        self._begin()
        if hop.cancelled():
            for _, _, answer in group:
                answer.cancel()
            return
        error = hop.exception()
        results = hop.result() if error is None else [error] * len(group)
        for (_, _, answer), result in zip(group, results, strict=True):
            if answer.done():  # its flow was cancelled
                continue
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)


def _put_all(objects: ObjectStore, puts: Sequence[Put]) -> Sequence[ObjectInfo | PenstockError]:
    return [put_one(objects, puts[0])] if len(puts) == 1 else objects.put_many(puts)
