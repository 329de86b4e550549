"""One sentence about a library that is not installed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Say which extra to install if an import in the body fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this adapter needs {error.name}: pip install 'crossbatch[{extra}]'", name=error.name
        ) from None
