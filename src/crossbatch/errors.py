"""What a user can mend; the command line prints it without a traceback."""


class ConfigError(ValueError):
    """A recipe, an option or an argument that cannot be honoured."""


class DataError(ValueError):
    """A file that is missing, broken, foreign or of another format version."""


class DivergedError(ConfigError):
    """The loss is no longer finite: other settings may work, these do not."""


class Interrupted(Exception):  # noqa: N818 (not an error: the run is saved)
    """Training was stopped by the user; the message says how to resume it."""


class OtherRankError(ConfigError):
    """Another of the processes that train together says what is wrong; this one only ends."""


class RankLostError(RuntimeError):
    """One of the processes that train together was killed or hangs; empty if another says so."""


# What libraries say who ask for memory, or for a thread and its stack, in vain.
NO_MEMORY = (
    "allocate memory",
    "bad_alloc",
    "start new thread",
    "could not spawn threads",
    "failed to map segment",
    "memory allocation of",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; of those of most libraries only the message tells."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in NO_MEMORY)
