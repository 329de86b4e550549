"""Ctrl-C as a question that is asked between steps, so that a run can save and end."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C into a question that is asked between steps; a second one interrupts at once."""
    pressed = False

    def on_signal(*_: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    try:
        earlier = signal.signal(signal.SIGINT, on_signal)
    except ValueError:  # not the main thread: whoever runs it handles its signals
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, earlier)
