"""Find items by words of their titles: a scan over folded text, most popular items first.

    search = TitleSearch(bundle.item_titles, order)          # order: item ids, popular first
    search.find("amelie 2001", limit=20)                     # ids of matching items

Every title is folded (case, accents, punctuation) to one line of a byte string, in pieces of some
thousand lines. Because popular items come first, a common word fills the page within the first
piece; a rare one costs a scan at memory speed. There is nothing to store and little to build.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

PIECE_LINES = 8_192
MAX_BYTES = 512 << 20  # of folded text; about ten million titles
MAX_WORDS = 8  # of a query; further ones are not looked at

_ACCENTS = re.compile("[\u0300-\u036f]+")  # left over when NFKD takes accents off their letters
_MARKS = re.compile("[\u2000-\u206f\u3000-\u303f]")  # dashes, quotes, blanks beyond ASCII
# ASCII letters and digits and the line's end stay, other ASCII is a blank, as is UTF-8 beyond it.
_BLANKS = bytes(
    code if code >= 128 or chr(code).isalnum() or code == ord("\n") else ord(" ")
    for code in range(256)
)


def fold(text: str) -> str:
    """Return text in small letters without accents, apostrophes and other marks."""
    text = text.replace("'", "").replace("’", "").casefold()
    if not text.isascii():
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
        text = _MARKS.sub(" ", text)
    return text


class TitleSearch:
    """Titles in memory, ready to be searched; building it reads each of them once.

    Args:
        titles: Returns the titles of item ids.
        order: Item ids, the most popular first.  Shape `[num_items]`.
        max_bytes: Memory bound; titles beyond it, the least popular, are not found.
    """

    def __init__(
        self,
        titles: Callable[[Sequence[int]], list[str]],
        order: np.ndarray,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._order = order
        self._pieces: list[bytes] = []
        self.num_bytes = self.num_items = 0
        for start in range(0, len(order), PIECE_LINES):
            ids = order[start : start + PIECE_LINES].tolist()
            piece = _lines(titles(ids))
            if self.num_bytes + len(piece) > max_bytes:
                break
            self._pieces.append(piece)
            self.num_bytes += len(piece)
            self.num_items += len(ids)

    def find(self, query: str, *, limit: int, offset: int = 0) -> list[int]:
        """Return ids of items whose titles hold every word of `query`.

        First titles equal to the query, then those that begin with it, then those with words that
        begin with its words, then those that merely contain them; the popular first in each.

        Args:
            query: Words in any order and case.
            limit: How many ids at most.
            offset: How many matches to skip.
        """
        line = _lines([query.replace("\n", " ")])
        return list(islice(self._matches(line), offset, offset + limit))

    def _matches(self, line: bytes) -> Iterator[int]:
        """Yield ids for a query that has the form of a line of `_lines`."""
        words = sorted(set(line.split()[:MAX_WORDS]))
        if not words:
            return
        seen: set[int] = set()
        for needles in ([line], [line[:-1]], [b" " + word for word in words], words):
            for number, piece in enumerate(self._pieces):
                for row in _rows_with(piece, needles):
                    position = number * PIECE_LINES + row
                    if position not in seen:
                        seen.add(position)
                        yield int(self._order[position])


def _lines(titles: Sequence[str]) -> bytes:
    """Return folded titles, each after a line's end, with one blank before every word."""
    text = "\n".join(titles)
    if text.count("\n") >= len(titles):  # some title holds a line's end itself
        text = "\n".join(title.replace("\n", " ") for title in titles)
    line = b"\n" + fold(text).encode("utf-8", "replace").translate(_BLANKS) + b"\n"
    line = line.replace(b"\n", b" \n ")
    while b"  " in line:
        line = line.replace(b"  ", b" ")
    return line.replace(b" \n", b"\n")[:-1]


def _rows_with(piece: bytes, needles: Sequence[bytes]) -> Iterator[int]:
    """Yield the numbers of the lines that hold every needle, ascending."""
    if not all(needle in piece for needle in needles):
        return
    rarest = needles[0] if len(needles) == 1 else min(needles, key=piece.count)
    others = [needle for needle in needles if needle is not rarest]
    row, counted, place = -1, 0, piece.find(rarest)
    while place >= 0:
        row += piece.count(b"\n", counted, place + 1)
        end = piece.find(b"\n", place + 1)
        start = piece.rfind(b"\n", 0, place + 1)
        if all(piece.find(needle, start, end) >= 0 for needle in others):
            yield row
        counted, place = place + 1, piece.find(rarest, end)
