"""What the server tells of items besides scores: title, popularity, and how to find them."""

from __future__ import annotations

import json
import threading
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from crossbatch.evaluation.popularity import BANDS, popularity_bands
from crossbatch.serving.server.title_search import TitleSearch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from crossbatch.serving import Bundle

MAX_REMEMBERED = 1 << 16  # items whose JSON is kept; some 15 MB


class ItemFacts:
    """Facts of one bundle's items, as the JSON that goes out.

    Args:
        bundle: An open bundle.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._counts = np.asarray(bundle.item_counts)
        self._bands = popularity_bands(self._counts)
        self._remembered: dict[int, str] = {}
        self._search: TitleSearch | None = None
        self._building = threading.Lock()

    @cached_property
    def order(self) -> np.ndarray:
        """Item ids, the most popular first.  `[num_items]`."""
        return np.argsort(-self._counts[1:], kind="stable") + 1

    def objects(self, ids: Sequence[int], members: Iterable[str] | None = None) -> list[str]:
        """Key, title, training count and popularity band of items as JSON objects.

        Args:
            ids: Item ids.
            members: What else to say of each: JSON members such as `"score":0.5`.
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

        Args:
            search: Words of a title, or an item's key; blank for the most popular items.
            limit: Items of the page.
            offset: Items before it.
        """
        if not search.strip():
            ids = self.order[offset : offset + limit + 1].tolist()
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
                self._search = TitleSearch(self._bundle.item_titles, self.order)
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
