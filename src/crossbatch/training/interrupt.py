"""Ctrl-C as a question that is asked between steps, so that a run can save and end."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def interrupt_flag(*, launched: bool = False) -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C into a question that is asked between steps; a second one interrupts at once.

    Args:
        launched: Whether a launcher started this process among others. It passes on Ctrl-C, which
            then comes twice, and ends the others with SIGTERM when one fails; it has a limit of its
            own for those that do not end.
    """
    pressed = False

    def on_signal(*_: object) -> None:
        nonlocal pressed
        if pressed and not launched:
            raise KeyboardInterrupt
        pressed = True

    signals = (signal.SIGINT, signal.SIGTERM) if launched else (signal.SIGINT,)
    try:
        earlier = [signal.signal(number, on_signal) for number in signals]
    except ValueError:  # not the main thread: whoever runs it handles its signals
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        for number, handler in zip(signals, earlier, strict=True):
            signal.signal(number, handler)
