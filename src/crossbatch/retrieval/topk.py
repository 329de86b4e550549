"""The k largest scores of each user: over a stream of tiles, or of whole rows in cache.

Both compare scores in groups. A group's maximum decides whether anything in it can enter a list, so
that nearly all the work is one vectorised maximum, and little is left to sort.
"""

import torch
from torch import Tensor

from crossbatch.kernels.topk_scan import scores_above

MAX_ROW_GROUP = 16  # columns of a group in whole rows


class RunningTopK:
    """Top-k lists of B users while items stream past in ascending id order.

    Tie rule: of equal scores the smaller id stays first. Later items have larger ids, hence an item
    must *exceed* the k-th score to enter, and a stable sort of (list, newcomers) keeps the order.

    Args:
        rows: Number of users B.
        k: Length of the lists.
        like: A tensor whose dtype and device the scores share.
    """

    def __init__(self, rows: int, k: int, *, like: Tensor) -> None:
        self.scores = like.new_full((rows, k), -torch.inf)  # [B, k], best first
        self.item_ids = torch.zeros((rows, k), dtype=torch.long, device=like.device)
        self.items_merged = 0
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []  # users, item ids, scores

    def scan(self, tile: Tensor, group: int, *, first_id: int) -> None:
        """Collect the candidates among a tile of scores.

        Args:
            tile: `[G·group, K, B]` scores of consecutive items by interest and user.
            group: Items per group.
            first_id: Id of the tile's first item.
        """
        B, k = self.scores.shape
        threshold = self.scores[:, -1]  # [B]; what the list already holds
        found = scores_above(tile, group, threshold) if self.items_merged else None
        if found is None or len(found[0]) > k * B:
            threshold = torch.maximum(threshold, _below_kth_group(tile, group, k))
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


def _below_kth_group(tile: Tensor, group: int, k: int) -> Tensor:
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

    Args:
        scores: `[b, N]`, a whole number of groups.
        k: Length of the lists; there are more groups than this.
        group: Columns of a group.

    Returns:
        Values and columns `[b, k]`; None where equal scores leave open which column is the k-th.
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
