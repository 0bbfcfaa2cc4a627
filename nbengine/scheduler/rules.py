"""Reasons, other than space, to pass a waiting request over for this step while those behind it go on.

Each is a collaborator of the scheduler, listed once in its constructor, so that the admission loop knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nbengine.scheduler.decision import Verdict
from nbengine.scheduler.request import Request


class AdmissionRule(Protocol):
    def begin(self, scheduled: Iterable[Request]) -> None:
        """A new admission pass; `scheduled` are the running requests that got tokens in this step."""

    def refusal(self, request: Request) -> tuple[Verdict, dict[str, int]] | None:
        """Why this request cannot be admitted now, with the numbers; None if it can, as far as this rule goes."""

    def admitted(self, request: Request) -> None:
        """The request got tokens in this step."""


class LoraSlots:
    """At most `max_loras` different adapters in a step."""

    def __init__(self, max_loras: int) -> None:
        self.max_loras = max_loras
        self.active: set[int] = set()

    def begin(self, scheduled: Iterable[Request]) -> None:
        self.active = {request.lora_id for request in scheduled if request.lora_id}

    def refusal(self, request: Request) -> tuple[Verdict, dict[str, int]] | None:
        if not request.lora_id or request.lora_id in self.active or len(self.active) < self.max_loras:
            return None
        return Verdict.MAX_LORAS, {"active": len(self.active), "limit": self.max_loras}

    def admitted(self, request: Request) -> None:
        if request.lora_id:
            self.active.add(request.lora_id)
