"""Texts and progress bars for terminals; untrusted text cannot move the cursor or turn a line.

`main` of the command line puts a `PrintableStream` in place of stdout and stderr, because titles
and ids may be anybody's; whatever draws with rich uses a `console`.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from crossbatch.data.progress import Progress

# Control characters but tab and line feed, the directions that override text, line separators, and
# halves of characters, which no encoding can write.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with unsafe characters as escapes (`\u001b`), which JSON reads as the same text."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class PrintableStream:
    """A text stream that writes `printable` text to another; rich finds the other by itself."""

    def __init__(self, stream: IO[str]) -> None:
        if hasattr(stream, "reconfigure"):  # characters that the terminal lacks are no error
            stream.reconfigure(errors="backslashreplace")
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write the text and return its length."""
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def console(**options: Any) -> Console:
    """A rich console whose text is `printable` and not markup; `Text` objects have styles."""
    from rich.console import Console

    class PrintableConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return PrintableConsole(markup=False, emoji=False, **options)


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[Progress]:
    """Show one progress bar per stage on a terminal, and nothing elsewhere.

    What is fetched from object stores meanwhile is a stage, too.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    from crossbatch.remote import reporting

    screen = console(stderr=True)
    if quiet or not screen.is_terminal:
        yield lambda _stage, _done, _total: None
        return
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Bars(*columns, TimeElapsedColumn(), console=screen, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    bars.update(task, total=1, completed=1)
                tasks[stage] = bars.add_task(stage, total=total, note="")
            note = f"{done:,}" if total is None and done else ""
            bars.update(tasks[stage], completed=done, total=total, note=note)

        with reporting(report):
            yield report
