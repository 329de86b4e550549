"""Items for the API: their JSON objects, and the search for items by words of their titles.

    items = ItemFacts(bundle)
    items.page("amelie 2001", limit=20, offset=0)            # JSON objects, whether there are more

The search scans folded text. Every title is folded (case, accents, punctuation) to one line of a
byte string, in pieces of some thousand lines. Because popular items come first, a common word fills
the page within the first piece; a rare one costs a scan at memory speed. Nothing is stored on disk.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from crossbatch.evaluation.list_measures import BANDS, popularity_bands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from crossbatch.serving import Bundle

MAX_REMEMBERED = 1 << 16  # items whose JSON is kept; some 15 MB
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


class ItemFacts:
    """The items of one bundle as JSON objects, by id, by key or by page of a search."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._counts = np.asarray(bundle.item_counts)
        self._bands = popularity_bands(self._counts)
        self._remembered: dict[int, str] = {}
        self._search: TitleSearch | None = None
        self._building = threading.Lock()

    def objects(self, ids: Sequence[int], members: Iterable[str] | None = None) -> list[str]:
        """Key, title, training count and popularity band of items as JSON objects.

        `members` are further JSON members of each, such as `"score":0.5`.
        """
        remembered = self._remembered
        missing = [item for item in ids if item not in remembered]
        if missing:
            if len(remembered) + len(missing) > MAX_REMEMBERED:
                remembered = self._remembered = {}
                missing = list(ids)
            remembered.update(zip(missing, self._openings(missing), strict=True))
        if members is None:
            return [remembered[item] + "}" for item in ids]
        return [f"{remembered[item]},{more}}}" for item, more in zip(ids, members, strict=True)]

    def by_keys(self, keys: Iterable[str]) -> tuple[list[str], list[str]]:
        """The items with these keys, and the keys of none."""
        (known,), (unknown,) = self._bundle.known([list(keys)])
        return self.objects(known.tolist()), unknown

    def page(self, search: str, *, limit: int, offset: int) -> tuple[list[str], bool]:
        """One page of items whose titles match, and whether there are more.

        `search` holds words of a title, or an item's key; blank for the most popular items.
        """
        if not search.strip():
            ids = self._bundle.by_popularity[offset : offset + limit + 1].tolist()
        else:
            # An exact key comes before all titles.
            keyed = [item for item in self._bundle.item_ids([search.strip()]).tolist() if item]
            found = self.titles().find(search, limit=offset + limit + 1)
            ids = [*keyed, *(item for item in found if item not in keyed)][offset:]
        return self.objects(ids[:limit]), len(ids) > limit

    @property
    def searchable(self) -> bool:
        """Whether the search over titles is built."""
        return self._search is not None

    def titles(self) -> TitleSearch:
        """The search over titles; the first call builds it."""
        with self._building:
            if self._search is None:
                self._search = TitleSearch(self._bundle.item_titles, self._bundle.by_popularity)
            return self._search

    def _openings(self, ids: Sequence[int]) -> list[str]:
        """The items' objects without the closing brace."""
        keys, titles = self._bundle.item_keys(ids), self._bundle.item_titles(ids)
        return [
            f'{{"id":{_text(key)},"title":{_text(title)},"count":{self._counts[item]},'
            f'"popularity":"{BANDS[self._bands[item]]}"'
            for item, key, title in zip(ids, keys, titles, strict=True)
        ]


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def fold(text: str) -> str:
    """Return text in small letters without accents, apostrophes and other marks."""
    text = text.replace("'", "").replace("’", "").casefold()
    if not text.isascii():
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
        text = _MARKS.sub(" ", text)
    return text


class TitleSearch:
    """Titles in memory, ready to be searched; building it reads each of them once.

    `titles` returns the titles of item ids; `order` is all ids, the most popular first. Titles
    beyond `MAX_BYTES`, the least popular, are not found.
    """

    def __init__(self, titles: Callable[[Sequence[int]], list[str]], order: np.ndarray) -> None:
        self._order = order
        self._pieces: list[bytes] = []
        self.num_bytes = 0
        for start in range(0, len(order), PIECE_LINES):
            piece = _lines(titles(order[start : start + PIECE_LINES].tolist()))
            if self.num_bytes + len(piece) > MAX_BYTES:
                break
            self._pieces.append(piece)
            self.num_bytes += len(piece)

    def find(self, query: str, *, limit: int) -> list[int]:
        """Return up to `limit` ids of items whose titles hold every word of `query`.

        First titles equal to the query, then those that begin with it, then those with words that
        begin with its words, then those that merely contain them; the popular first in each.
        """
        line = _lines([query.replace("\n", " ")])
        return list(islice(self._matches(line), limit))

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
