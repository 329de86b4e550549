"""How a run may end without a result."""

from __future__ import annotations

from crossbatch.errors import ConfigError


class Interrupted(Exception):  # noqa: N818 (not an error: the run is saved)
    """Training was stopped by the user; the message says how to go on."""


class DivergedError(ConfigError):
    """The loss is no longer finite: other settings may do, these do not."""
