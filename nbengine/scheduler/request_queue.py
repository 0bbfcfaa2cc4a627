"""Where requests wait: first come, first served, or by a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from nbengine.errors import RuleError
from nbengine.scheduler.decision import rule_name
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

    def reorder(self, request: Request) -> None:
        """What its place depends on may have changed: put it where it belongs now."""
        self.remove(request)
        self.add(request)

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

    def reorder(self, request: Request) -> None:
        """It came when it came."""

    def goes_before(self, other: RequestQueue) -> bool:
        return True

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


class KeyedQueue(RequestQueue):
    """The smallest key goes first; equal keys in the order in which they were put in.

    A sorted list, and no heap: the place is found before anything moves. So a key that raises, or that cannot be compared
    with the others, is a RuleError and leaves the queue as it was. O(log length) comparisons to put one in, none to take
    one out.

    A key is taken when a request is put in. After changing what it is made of, `reorder`.
    """

    def __init__(self, key: Callable[[Request], Any]) -> None:
        self._key = key
        self._order = count()
        self._entries: list[tuple[Any, int, Request]] = []

    def add(self, request: Request) -> None:
        self._put(request)

    def prepend(self, request: Request) -> None:
        self._put(request)

    def put_back(self, request: Request, key: Any) -> None:
        """Make it the last, with the key that it had in such a queue before."""
        self._entries.append((key, next(self._order), request))

    def keys(self) -> dict[str, Any]:
        """The key that each request was put in with."""
        return {request.request_id: key for key, _order, request in self._entries}

    def peek(self) -> Request:
        return self._entries[0][2]

    def pop(self) -> Request:
        return self._entries.pop(0)[2]

    def remove(self, request: Request) -> None:
        kept = [entry for entry in self._entries if entry[2] is not request]
        if len(kept) == len(self._entries):
            raise ValueError(f"{request.request_id!r} is not in the queue.")
        self._entries = kept

    def reorder(self, request: Request) -> None:
        new = self._put(request)
        self._entries = [entry for entry in self._entries if entry[2] is not request or entry is new]

    def goes_before(self, other: RequestQueue) -> bool:
        theirs = other._entries[0][0] if isinstance(other, KeyedQueue) else self._key(other.peek())
        return bool(self._entries[0][0] < theirs)

    def __iter__(self) -> Iterator[Request]:
        return (entry[2] for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _put(self, request: Request) -> tuple[Any, int, Request]:
        rule, name = rule_name(self._key), request.request_id
        try:
            key = self._key(request)
        except Exception as error:
            raise RuleError(f"{rule} raised {type(error).__name__} for {name!r}: {error}") from error
        entry = (key, next(self._order), request)
        try:
            bool(key < key)  # the first in the queue is compared with nobody else
            insort(self._entries, entry)
        except Exception as error:
            raise RuleError(
                f"{rule} returned {key!r} for {name!r}, which cannot be sorted among the other keys: "
                f"{type(error).__name__}: {error}"
            ) from error
        return entry
