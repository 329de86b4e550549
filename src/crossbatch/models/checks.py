"""What constructors say of an argument that cannot be honoured."""

from collections.abc import Iterable


def check_choice(argument: str, value: str, choices: Iterable[str]) -> None:
    """Raise `ValueError` unless `value` is one of `choices`."""
    allowed = list(choices)
    if value not in allowed:
        raise ValueError(f"{argument} must be one of {', '.join(allowed)}, got {value!r}")


def check_at_least_one(**sizes: int) -> None:
    """Raise `ValueError` for the first size below 1."""
    for argument, value in sizes.items():
        if value < 1:
            raise ValueError(f"{argument} must be at least 1, got {value}")


def check_share(argument: str, value: float) -> None:
    """Raise `ValueError` unless `value` is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{argument} must be in [0, 1), got {value}")


def input_width(input_dim: int | None, dim: int) -> int:
    """Width of the vectors that a user tower reads: `input_dim`, or `dim` where that is None."""
    width = dim if input_dim is None else input_dim
    check_at_least_one(input_dim=width)
    return width
