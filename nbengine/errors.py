"""Every error that nbengine raises on purpose. Each message says what is wrong, what was got and what to do."""

from __future__ import annotations


class NBEngineError(Exception):
    """Base of all errors raised on purpose by nbengine."""


class ConfigError(NBEngineError, ValueError):
    """The engine cannot be built from these options."""


class InvalidRequestError(NBEngineError, ValueError):
    """One request is refused; the engine and every other request go on."""


class InvalidParameterError(InvalidRequestError):
    """A sampling or pooling parameter is out of range."""


class DuplicateRequestError(InvalidRequestError):
    """A live request already has this id."""


class ModelError(NBEngineError):
    """A model cannot be found, fetched, checked or loaded."""


class PhaseError(NBEngineError, RuntimeError):
    """schedule, execute and update were called out of order, or from two threads at once."""


class StepError(NBEngineError, RuntimeError):
    """A phase of a step failed; the message carries the scheduler's state at that moment."""


class RuleError(NBEngineError, ValueError):
    """A rule of the scheduler, often a person's own, raised or returned what cannot be used. Nothing has changed by it."""


class InvariantError(NBEngineError, AssertionError):
    """The engine's own books do not add up: a bug in nbengine or in a user's scheduler."""


class StalledError(NBEngineError, RuntimeError):
    """Requests wait, nothing runs, and no step can change that; the message gives each one's reason."""


class StoppedError(NBEngineError, RuntimeError):
    """A breakpoint or a pause stopped a blocking call, and nobody was there who could have let it go on. All is in place."""


class TraceError(NBEngineError, ValueError):
    """A trace file is foreign, cut off, or of a newer schema."""
