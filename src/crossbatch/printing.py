"""Untrusted text, such as titles and ids, for terminals: it cannot move the cursor or turn a line.

`main` of the command line puts a `PrintableStream` in place of stdout and stderr; whatever draws
with rich uses a `console`.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

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
