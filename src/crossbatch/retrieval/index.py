"""The `Index` protocol, and exact search: inner products with every item, near GEMM speed.

    top = ExactIndex(item_vectors).search(interests, k=50)    # interests [B, K, d]
    top.item_ids                                              # [B, 50]

A user with K interests scores an item by the largest of the K inner products, so one-vector and
multi-interest models share this path (for ComiRec's "search each interest, pool, drop repeats" the
result is the same list). Weighted `Queries` score an item together, by their log-sum-exp.

Scores are compared in groups. A group's maximum decides whether anything in it can enter a list, so
that nearly all the work is one vectorised maximum, and little is left to sort.
"""

from functools import cached_property
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from crossbatch.queries import Queries, combined, rows_of, weights_of
from crossbatch.retrieval.allowed import Allowed
from crossbatch.retrieval.coarse import CoarseScores
from crossbatch.retrieval.topk import (
    MAX_GROUP,
    TILE_SCORES,
    Forbidden,
    RunningTopK,
    TopK,
    best_of_rows,
    forbid,
    group_size,
    search_blocks,
    tile_items,
)

# Rows of a tile: interests of all users in a block. The GEMM is at full speed from about 256 on.
BLOCK_ROWS = 512
# Up to so many items all scores of a row are computed at once, up to twice as fast as streaming,
# where the first lists would be most of the work. With few rows, tiles are too narrow.
SMALL_ITEMS = 1 << 15
FEW_ROWS, FEW_ITEMS = 64, 1 << 17
MAX_ROW_GROUP = 16  # columns of a group in whole rows
# Where fewer than 1 / FEW_ALLOWED of the items may be returned, their vectors are copied and
# searched; otherwise all are scored, and the scores of the others are masked.
FEW_ALLOWED = 8


class Index(Protocol):
    """Anything that answers the top-k question over a fixed set of item vectors."""

    exact: ClassVar[bool]

    @property
    def num_items(self) -> int:
        """Number of items that can be returned; ids run from 1 to this."""
        ...

    def search(
        self,
        interests: Tensor | Queries,
        k: int,
        *,
        exclude: Tensor | None = None,
        allowed: Tensor | Allowed | None = None,
    ) -> TopK:
        """Return the k items of largest score for each of B users.

        That is the maximum over interests `[B, K, d]`, or what `Queries` give together. Ids in
        `exclude` `[B, X]` are left out for that user, items outside `allowed` for all.
        """
        ...


class ExactIndex:
    """Exact search by matrix products in tiles; memory is bounded whatever the catalogue's size.

    The same call gives the same answer. Which of two items comes first when their scores differ by
    float rounding only may depend on the shape of the call, as it does for any matrix product.

    Args:
        vectors: `[N + 1, d]` item vectors, row = item id. Row 0 is padding and never returned.
    """

    exact: ClassVar[bool] = True

    def __init__(self, vectors: Tensor) -> None:
        if vectors.dim() != 2 or len(vectors) < 2:
            raise ValueError(
                "vectors must be [num_items + 1, d] with row 0 as padding, "
                f"got {list(vectors.shape)}"
            )
        if vectors.dtype not in (torch.float32, torch.float64):
            vectors = vectors.float()
        self.vectors = vectors.detach()
        _require_finite("vectors", self.vectors[1:])

    @property
    def num_items(self) -> int:
        """Number of items that can be returned; ids run from 1 to this."""
        return len(self.vectors) - 1

    @torch.no_grad()
    def search(
        self,
        interests: Tensor | Queries,
        k: int,
        *,
        exclude: Tensor | None = None,
        allowed: Tensor | Allowed | None = None,
    ) -> TopK:
        """Return the k items of largest `max over interests of interest · item` for each user.

        Args:
            interests: `[B, K, d]` vectors of B users, or their `Queries`.
            k: Length of the lists. More than the catalogue holds is allowed: see `TopK`.
            exclude: `[B, X]` item ids never to return for that user; 0 means none.
            allowed: `[N + 1]` bool, the items that may be returned to any user, or an `Allowed`,
                which is prepared once for many searches; None: all.
        """
        self.check(interests, k, exclude, allowed)
        interests = interests.detach().to(self.vectors)
        if allowed is not None:
            allowed = Allowed.of(allowed).to(self.vectors.device)
            if allowed.count * FEW_ALLOWED < self.num_items:
                return self._search_few(interests, k, exclude, allowed)
        if not len(interests):
            best = RunningTopK(0, k, like=self.vectors)
            return TopK(best.scores, best.item_ids)
        if not CoarseScores.pay(self.vectors, interests, k):
            return self._search_all(interests, k, exclude, allowed)
        scores, item_ids, certain = self._coarse.search(interests, k, exclude, allowed)
        rest = (~certain).nonzero().squeeze(1)
        if len(rest):
            banned = None if exclude is None else exclude[rest]
            found = self._search_all(rows_of(interests, rest), k, banned, allowed)
            scores[rest], item_ids[rest] = found.scores, found.item_ids
        return TopK(scores, item_ids)

    def part(self, item_ids: Tensor) -> Self:
        """An index over a copy of the rows `[n + 1]`, the padding among them, in this order."""
        part = object.__new__(type(self))  # finite, as all rows are: no need to read them again
        part.vectors = self.vectors.index_select(0, item_ids)  # far faster than by brackets
        return part

    @cached_property
    def _coarse(self) -> CoarseScores:
        return CoarseScores(self.vectors)

    def _search_few(
        self, interests: Tensor | Queries, k: int, exclude: Tensor | None, allowed: Allowed
    ) -> TopK:
        """Search a copy of the allowed items' vectors; their order keeps that of the ids."""
        if not allowed.count:
            best = RunningTopK(len(interests), k, like=self.vectors)
            return TopK(best.scores, best.item_ids)
        item_ids = allowed.item_ids
        if exclude is not None:
            banned = exclude.to(item_ids).contiguous()
            rows = torch.searchsorted(item_ids, banned).clamp_max(len(item_ids) - 1)
            exclude = rows.where(item_ids[rows] == banned, 0)
        found = allowed.part_of(self).search(interests, k, exclude=exclude)
        return TopK(found.scores, item_ids[found.item_ids])

    def _search_all(
        self,
        interests: Tensor | Queries,
        k: int,
        exclude: Tensor | None,
        allowed: Allowed | None,
    ) -> TopK:
        """Score every item exactly, in blocks of users."""
        B, K, _ = weights_of(interests)[0].shape
        # Long lists and many interests make the block smaller, so that memory stays bounded.
        rows = max(1, min(BLOCK_ROWS // K, 2 * TILE_SCORES // k))
        whole = k < self.num_items <= (FEW_ITEMS if B * K <= FEW_ROWS else SMALL_ITEMS)
        if whole:
            rows = max(1, min(rows, 4 * TILE_SCORES // (K * self.num_items)))

        def search(block: Tensor | Queries, banned: Tensor | None) -> TopK:
            found = self._search_rows(block, k, banned, allowed) if whole else None
            return found or self._search_block(block, k, banned, allowed)

        return search_blocks(search, interests, exclude, rows)

    def _search_rows(
        self,
        interests: Tensor | Queries,
        k: int,
        exclude: Tensor | None,
        allowed: Allowed | None,
    ) -> TopK | None:
        """Score all items at once; None where equal scores make the k-th item ambiguous."""
        vectors, log_weights = weights_of(interests)
        b, K, d = vectors.shape
        columns, group = len(self.vectors), group_size(len(self.vectors), k + 1, MAX_ROW_GROUP)
        scores = self.vectors.new_empty(b * K, -(-columns // group) * group)
        torch.mm(vectors.reshape(b * K, d), self.vectors.T, out=scores[:, :columns])
        scores[:, columns:] = -torch.inf
        if log_weights is not None or K > 1:
            scores = combined(scores.view(b, K, -1), log_weights)
        forbid(scores, columns, exclude, allowed)
        found = best_of_rows(scores, k, group)
        return None if found is None else TopK(*found)

    def _search_block(
        self,
        interests: Tensor | Queries,
        k: int,
        exclude: Tensor | None,
        allowed: Allowed | None,
    ) -> TopK:
        """Stream the catalogue past one block of users."""
        vectors, log_weights = weights_of(interests)
        b, K, d = vectors.shape
        # Items are the rows of a tile and users its fastest dimension: reducing over groups of
        # items is then a vectorised maximum of whole lines.
        queries = vectors.transpose(0, 1).reshape(K * b, d).T  # [d, K·b]
        size = tile_items(self.num_items, K * b)
        tile = self.vectors.new_empty(size, K, b)
        best = RunningTopK(b, k, like=self.vectors)
        forbidden = Forbidden(exclude, allowed, self.vectors.device)
        for start in range(1, self.num_items + 1, size):
            items = self.vectors[start : start + size]
            n, seen = len(items), start + len(items) - 1
            group = group_size(seen, k, MAX_GROUP)
            torch.mm(items, queries, out=tile[:n].view(n, K * b))
            filled = -(-n // group) * group
            tile[n:filled] = -torch.inf
            forbidden.apply(tile[:n], start)
            scores = tile[:filled]
            if log_weights is not None:
                scores = scores.add_(log_weights.T).logsumexp(dim=1, keepdim=True)
            best.scan(scores, group, first_id=start)
            # Merging whenever the items seen have doubled keeps both merges and candidates few:
            # about k candidates a user pass an old threshold in each doubling.
            if seen >= 2 * best.items_merged:
                best.merge(items_seen=seen)
        best.merge(items_seen=self.num_items)
        return TopK(best.scores, best.item_ids)

    def check(
        self,
        interests: Tensor | Queries,
        k: int,
        exclude: Tensor | None,
        allowed: Tensor | Allowed | None = None,
    ) -> None:
        """Raise `ValueError` for arguments that no index could answer."""
        d = self.vectors.shape[1]
        vectors, log_weights = weights_of(interests)
        if vectors.dim() != 3 or vectors.shape[2] != d or vectors.shape[1] == 0:
            raise ValueError(
                f"interests must be [B, K, {d}], got {list(vectors.shape)}; "
                "a model with one vector per user gives [B, 1, d]"
            )
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if exclude is not None:
            if exclude.dim() != 2 or len(exclude) != len(vectors):
                raise ValueError(
                    f"exclude must be [{len(vectors)}, X] item ids padded with 0, "
                    f"got {list(exclude.shape)}"
                )
            if exclude.is_floating_point():
                raise ValueError(f"exclude must hold integer item ids, got {exclude.dtype}")
        if allowed is not None:
            mask = Allowed.of(allowed).mask
            if mask.dtype != torch.bool or mask.shape != self.vectors.shape[:1]:
                raise ValueError(
                    f"allowed must be bool of shape [{len(self.vectors)}], "
                    f"got {mask.dtype} {list(mask.shape)}"
                )
        _require_finite("interests", vectors)
        if log_weights is not None and len(vectors):
            _require_finite("the largest log-weight of each user", log_weights.amax(dim=1))


def _require_finite(name: str, values: Tensor) -> None:
    """Refuse NaN and infinity, which would be missing from every list, or fill it."""
    if values.numel() and not torch.isfinite(torch.stack(values.aminmax())).all():
        raise ValueError(
            f"{name} must be finite, got NaN or infinity; "
            "check the training loss and the learning rate"
        )
