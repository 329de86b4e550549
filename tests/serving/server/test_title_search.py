"""Title search against a plain loop over all titles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.serving.server import items
from crossbatch.serving.server.items import TitleSearch, fold

TITLES = [
    "", "Star Wars: Episode IV - A New Hope (1977)", "Star", "A Star Is Born", "Amélie", "Été 85",
    "Schindler’s List", "Schindlers Liste", "WALL·E", "Se7en", "The Matrix", "Matrix, The (1999)",
    "Ｆｕｌｌｗｉｄｔｈ", "Straße", "七人の侍", "Starship Troopers", "Rising Star", "Mustard Stars",
]  # fmt: skip


def search_over(titles: list[str], order: list[int] | None = None) -> TitleSearch:
    ids = order or list(range(1, len(titles)))
    return TitleSearch(lambda some: [titles[item] for item in some], np.array(ids))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("star", ["Star", "Star Wars: Episode IV - A New Hope (1977)", "Starship Troopers",
                  "A Star Is Born", "Rising Star", "Mustard Stars"]),
        ("wars star", ["Star Wars: Episode IV - A New Hope (1977)"]),
        ("star wars episode", ["Star Wars: Episode IV - A New Hope (1977)"]),
        ("amelie", ["Amélie"]), ("AMÉLIE", ["Amélie"]), ("ete", ["Été 85"]),
        ("schindler's", ["Schindler’s List", "Schindlers Liste"]),
        ("schindlers list", ["Schindler’s List", "Schindlers Liste"]),
        ("the matrix", ["The Matrix", "Matrix, The (1999)"]), ("1999", ["Matrix, The (1999)"]),
        ("fullwidth", ["Ｆｕｌｌｗｉｄｔｈ"]), ("strasse", ["Straße"]), ("STRAẞE", ["Straße"]),
        ("七人", ["七人の侍"]), ("侍", ["七人の侍"]), ("e7e", ["Se7en"]), ("wall e", ["WALL·E"]),
        ("nothing like it", []), ("", []), ("  ...!? ", []), ("\n", []), ("\x00", []),
    ],
)  # fmt: skip
def test_typical_queries(query: str, expected: list[str]) -> None:
    found = search_over(TITLES).find(query, limit=20)
    assert [TITLES[item] for item in found] == expected


words = st.sampled_from(["star", "stars", "wars", "a", "ab", "abc", "new-hope", "é", "x'y", "\n"])
titles = st.lists(words, max_size=4).map(" ".join)


@given(st.lists(titles, min_size=1, max_size=30), titles, st.randoms(), st.integers(1, 8))
def test_matches_and_their_order_are_those_of_a_plain_loop(
    some: list[str], query: str, random: object, piece: int
) -> None:
    everything = ["", *some]
    order = list(range(1, len(everything)))
    random.shuffle(order)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "PIECE_LINES", piece)
        search = search_over(everything, order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "PIECE_LINES", piece)
        found = search.find(query, limit=100)
        parts = [search.find(query, limit=size) for size in range(0, 100, 3)]
    assert found == plain(everything, order, query)
    assert parts == [found[:size] for size in range(0, 100, 3)]


def plain(everything: list[str], order: list[int], query: str) -> list[int]:
    """Every title by the four rules, each in the given order."""

    def tokens(text: str) -> list[str]:
        return "".join(c if c.isalnum() else " " for c in fold(text)).split()

    wanted = tokens(query)
    if not wanted:
        return []

    def rule(item: int) -> int | None:
        own = tokens(everything[item])
        joined = " ".join(own)
        if own == wanted:
            return 0
        if joined.startswith(" ".join(wanted)):
            return 1
        if all(any(word.startswith(w) for word in own) for w in wanted):
            return 2
        return 3 if all(w in joined for w in wanted) else None

    ranked = [(rule(item), place) for place, item in enumerate(order)]
    return [order[place] for kind, place in sorted(r for r in ranked if r[0] is not None)]


def test_memory_is_bounded_and_popular_items_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "PIECE_LINES", 10)
    everything = ["", *(f"Film number {number}" for number in range(1, 101))]
    monkeypatch.setattr(items, "MAX_BYTES", 500)
    search = search_over(everything)
    found = search.find("film", limit=200)
    assert 0 < len(found) < 100
    assert search.num_bytes <= 500
    assert found == list(range(1, len(found) + 1))


def test_a_query_of_very_many_words_is_cut() -> None:
    search = search_over(["", "a b c d e f g h"])
    assert search.find("a b c d e f g h " + "zzz " * 50, limit=5) == [1]
