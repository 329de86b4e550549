"""Exceptions that a user can resolve; the command line prints them without a traceback."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """An invalid recipe, option or argument."""


class DataError(ValueError):
    """A file that is missing, damaged, unknown, of another version, or cannot be written."""


class DivergedError(ConfigError):
    """The loss is no longer finite; other settings may work."""


class Interrupted(Exception):  # noqa: N818 (not an error: the run is saved)
    """Training was stopped by the user; the message says how to resume it."""


class OtherRankError(ConfigError):
    """Another rank failed and reports the error; this one only exits."""


class RankLostError(RuntimeError):
    """A rank was killed or hangs; without a message if another rank reports it."""


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise `ConfigError` unless an option has one of its possible values."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


# Parts of the messages of libraries when memory, or a thread and its stack, cannot be allocated.
NO_MEMORY = (
    "allocate memory",
    "bad_alloc",
    "start new thread",
    "could not spawn threads",
    "failed to map segment",
    "memory allocation of",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; most libraries say so only in their message."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)


def reason_of(error: BaseException) -> str:
    """The first line of an error's message, or its name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Name the extra that `what` needs if an import in the body fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{what} needs {error.name}: pip install 'crossbatch[{extra}]'") from None
