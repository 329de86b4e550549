"""The two errors of a user's mistake; the command line prints them without a traceback."""


class ConfigError(ValueError):
    """A recipe, an option or an argument that cannot be honoured."""


class DataError(ValueError):
    """A file that is missing, broken, foreign or of another format version."""
