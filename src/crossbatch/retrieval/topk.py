"""Lists of the best items: `TopK`, and how searches fill it from tiles or rows of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossbatch.kernels.topk_scan import scores_above
from crossbatch.queries import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.queries import Queries
    from crossbatch.retrieval.allowed import Allowed


# A tile of scores is at most this many numbers (4 MB): it stays in cache between the GEMM that
# writes it and the scan that reads it.
TILE_SCORES = 1 << 20
MAX_GROUP = 32  # items of a group in tiles


@dataclass(frozen=True, slots=True)
class TopK:
    """The best items of B users, best first; equal scores stand in ascending item id.

    A user with fewer than k eligible items has item id 0 and score −∞ in the slots left over.
    """

    scores: Tensor  # [B, k]
    item_ids: Tensor  # [B, k] int64


def search_blocks(
    search: Callable[[Tensor | Queries, Tensor | None], TopK],
    interests: Tensor | Queries,
    exclude: Tensor | None,
    rows: int,
) -> TopK:
    """Search for blocks of `rows` users one after the other, which bounds the memory."""
    spans = [slice(start, start + rows) for start in range(0, len(interests), rows)]
    blocks = [
        search(rows_of(interests, span), None if exclude is None else exclude[span])
        for span in spans
    ]
    return TopK(
        torch.cat([block.scores for block in blocks]),
        torch.cat([block.item_ids for block in blocks]),
    )


def forbid(scores: Tensor, num_rows: int, exclude: Tensor | None, allowed: Allowed | None) -> None:
    """Set scores to −∞ where an item must not be returned: padding, excluded, not allowed.

    Args:
        scores: `[b, ≥ num_rows]`, column = item id; changed in place.
        num_rows: Items of the catalogue, padding included.
        exclude: `[b, X]` item ids of each user; those that are no items count for nothing.
        allowed: The items that may be returned to any user; None: all.
    """
    scores[:, 0] = -torch.inf
    if exclude is not None:
        inside = (exclude > 0) & (exclude < num_rows)
        scores.scatter_(1, exclude.where(inside, 0).long(), -torch.inf)
    if allowed is not None:
        scores[:, :num_rows].add_(allowed.penalty)


class Forbidden:
    """As `forbid`, for tiles of items."""

    def __init__(
        self, exclude: Tensor | None, allowed: Allowed | None, device: torch.device
    ) -> None:
        # Adding −∞ costs the same whatever the mask; filling by a mask is slow where it is mixed.
        self.penalty = None if allowed is None else allowed.penalty
        self.item_ids: Tensor | None = None  # ascending, and the user of each
        if exclude is not None:
            exclude = exclude.to(device)
            users, columns = exclude.nonzero(as_tuple=True)
            self.item_ids, order = exclude[users, columns].long().sort()
            self.users = users[order]

    def apply(self, tile: Tensor, start: int) -> None:
        """Set scores `[n, K, b]` of the items from `start` on to −∞ where they are forbidden."""
        n = len(tile)
        if self.penalty is not None:
            tile.view(n, -1).add_(self.penalty[start : start + n, None])
        if self.item_ids is not None:
            ends = torch.searchsorted(self.item_ids, self.item_ids.new_tensor([start, start + n]))
            inside = slice(*ends.tolist())
            tile[self.item_ids[inside] - start, :, self.users[inside]] = -torch.inf


class RunningTopK:
    """Top-k lists of B users while items stream past in ascending id order.

    Tie rule: of equal scores the smaller id stays first. Later items have larger ids, hence an item
    must *exceed* the k-th score to enter, and a stable sort of (list, newcomers) keeps the order.

    Scores have the dtype and the device of `like`.
    """

    def __init__(self, rows: int, k: int, *, like: Tensor) -> None:
        self.scores = like.new_full((rows, k), -torch.inf)  # [B, k], best first
        self.item_ids = torch.zeros((rows, k), dtype=torch.long, device=like.device)
        self.items_merged = 0
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []  # users, item ids, scores

    def scan(self, tile: Tensor, group: int, *, first_id: int) -> None:
        """Collect the candidates among a tile `[G·group, K, B]`: item, interest, user."""
        B, k = self.scores.shape
        threshold = self.scores[:, -1]  # [B]; what the list already holds
        found = scores_above(tile, group, threshold) if self.items_merged else None
        if found is None or len(found[0]) > k * B:
            threshold = torch.maximum(threshold, below_kth_group(tile, group, k))
            found = scores_above(tile, group, threshold)
        users, items, scores = found
        if len(users):
            self._pending.append((users, items + first_id, scores))

    def merge(self, *, items_seen: int) -> None:
        """Merge the collected candidates into the lists."""
        self.items_merged = items_seen
        if not self._pending:
            return
        users, item_ids, scores = map(torch.cat, zip(*self._pending, strict=True))
        self._pending.clear()
        users, order = users.sort(stable=True)  # candidates of a user stay in ascending id
        B, k = self.scores.shape
        counts = users.bincount(minlength=B)
        starts = counts.cumsum(dim=0) - counts
        columns = k + torch.arange(len(users), device=users.device) - starts[users]
        width = k + int(counts.max())
        pool = self.scores.new_full((B, width), -torch.inf)
        pool_ids = self.item_ids.new_zeros((B, width))
        pool[:, :k], pool_ids[:, :k] = self.scores, self.item_ids
        pool[users, columns], pool_ids[users, columns] = scores[order], item_ids[order]
        ranked, ranking = pool.sort(dim=1, descending=True, stable=True)
        self.scores = ranked[:, :k].contiguous()
        self.item_ids = pool_ids.gather(1, ranking[:, :k])


def below_kth_group(tile: Tensor, group: int, k: int) -> Tensor:
    """The number just below the k-th largest group maximum of each user `[B]`.

    The k best groups hold k items at least as good as the k-th group's maximum, so that nothing
    below it can enter a list.
    """
    n, K, B = tile.shape
    maxima = tile.view(n // group, group * K, B).amax(dim=1)  # [G, B]
    if len(maxima) <= k:
        return maxima.new_full((B,), -torch.inf)
    kth = maxima.topk(k, dim=0, sorted=False).values.amin(dim=0)
    return kth.nextafter(kth.new_tensor(-torch.inf))


def tile_items(num_items: int, rows: int, numbers: int = TILE_SCORES) -> int:
    """Return items per tile: a multiple of every group size, no more than needed."""
    fitting = max(1024, numbers // rows)
    return min(fitting, num_items + MAX_GROUP - 1) // MAX_GROUP * MAX_GROUP


def group_size(items: int, k: int, largest: int) -> int:
    """Items of a group: a power of two near √(items / k), up to `largest`.

    About k / items of all enter a list. Larger groups mean fewer maxima to look at but more scores
    to fetch for each hit; the sum is least there.
    """
    group = 1
    while group < largest and (2 * group) ** 2 * k <= items:
        group *= 2
    return group


def best_of_rows(scores: Tensor, k: int, group: int) -> tuple[Tensor, Tensor] | None:
    """The k largest scores of each row and their columns, best first, equals in column order.

    The scores `[b, N]` are a whole number of groups, and more than k of them. The lists are
    `[b, k]`; None where equal scores leave open which column is the k-th.
    """
    b, N = scores.shape
    if group == 1:
        top, columns = scores.topk(k + 1, dim=1)
    else:
        # Group g is the columns g, G + g, 2G + g, …: the maximum then runs along whole lines.
        maxima = scores.view(b, group, N // group).amax(dim=1)  # [b, G]
        groups = maxima.topk(k + 1, dim=1, sorted=False).indices.unsqueeze(1)
        members = torch.arange(0, N, N // group, device=scores.device)[:, None]
        chosen = (groups + members).flatten(1)  # [b, group · (k + 1)]
        top, places = scores.gather(1, chosen).topk(k + 1, dim=1)
        columns = chosen.gather(1, places)
    same = top[:, :k] == top[:, 1:]
    if bool(same[:, -1].any()):
        return None
    top, columns = top[:, :k], columns[:, :k]
    if bool(same.any()):
        columns, order = columns.sort(dim=1)
        top, order = top.gather(1, order).sort(dim=1, descending=True, stable=True)
        columns = columns.gather(1, order)
    return top, columns
