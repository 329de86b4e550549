"""Search for a recipe's settings with Optuna, on validation users alone (extra `tune`)."""

from crossbatch.tuning.space import Choice, Range, Space, default_space, read_space

__all__ = ["Choice", "Range", "Space", "default_space", "read_space"]
