"""What a user can mend; the command line prints it without a traceback."""


class ConfigError(ValueError):
    """A recipe, an option or an argument that cannot be honoured."""


class DataError(ValueError):
    """A file that is missing, broken, foreign or of another format version."""


class OtherRankError(ConfigError):
    """Another of the processes that train together says what is wrong; this one only ends."""


class RankLostError(RuntimeError):
    """One of the processes that train together was killed or hangs; empty if another says so."""
