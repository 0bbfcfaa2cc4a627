"""Where requests wait: first come, first served, or by a key."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from nbengine.scheduler.request import Request


class RequestQueue(ABC):
    """Requests in the order in which they are to be admitted. Iterating gives that order and changes nothing."""

    @abstractmethod
    def add(self, request: Request) -> None:
        """Put a newcomer in its place."""

    @abstractmethod
    def prepend(self, request: Request) -> None:
        """Put back a request that had its turn already, as far forward as this queue's order allows."""

    @abstractmethod
    def peek(self) -> Request:
        """The next one, left in place. Raises IndexError if there is none."""

    @abstractmethod
    def pop(self) -> Request:
        """Take the next one."""

    @abstractmethod
    def remove(self, request: Request) -> None:
        """Take this one from wherever it stands. Raises ValueError if it is not here. O(length)."""

    @abstractmethod
    def goes_before(self, other: RequestQueue) -> bool:
        """Is this queue's head more urgent than the head of `other`, where requests wait that met no obstacle yet?"""

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...

    @abstractmethod
    def __len__(self) -> int: ...


class FCFSQueue(RequestQueue):
    """First come, first served."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self._queue.append(request)

    def prepend(self, request: Request) -> None:
        self._queue.appendleft(request)

    def peek(self) -> Request:
        return self._queue[0]

    def pop(self) -> Request:
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        self._queue.remove(request)

    def goes_before(self, other: RequestQueue) -> bool:
        return True

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


class KeyedQueue(RequestQueue):
    """The smallest key goes first; equal keys in the order in which they were put in. A heap: O(log length) an operation.

    A key is taken when a request is put in. After changing what it is made of, take the request out and put it back.
    """

    def __init__(self, key: Callable[[Request], Any]) -> None:
        self._key = key
        self._order = count()
        self._heap: list[tuple[Any, int, Request]] = []

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (self._key(request), next(self._order), request))

    def prepend(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        return self._heap[0][2]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[2]

    def remove(self, request: Request) -> None:
        kept = [entry for entry in self._heap if entry[2] is not request]
        if len(kept) == len(self._heap):
            raise ValueError(f"{request.request_id!r} is not in the queue.")
        self._heap = kept
        heapq.heapify(self._heap)

    def goes_before(self, other: RequestQueue) -> bool:
        return bool(self._key(self.peek()) < self._key(other.peek()))

    def __iter__(self) -> Iterator[Request]:
        return (entry[2] for entry in sorted(self._heap, key=lambda entry: entry[:2]))

    def __len__(self) -> int:
        return len(self._heap)
