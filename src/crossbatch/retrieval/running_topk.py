"""The best k items of each user over a stream of score tiles, without sorting the tiles.

Scores are looked at in groups. A group's maximum decides whether anything in it can still enter a
list; after the first tiles almost nothing can, so nearly all the work is one vectorised maximum.
"""

import torch
from torch import Tensor

from crossbatch.kernels import HAS_NUMBA

FEW_USERS = 16  # a compiled scan takes them by the line, and one of fewer is short
MOST_NOTED = 1 << 18  # candidates of a tile; of more, torch finds the few that matter


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
        self._notes: tuple[Tensor, Tensor, Tensor] | None = None  # the same, of one compiled scan
        if HAS_NUMBA and like.device.type == "cpu" and rows >= FEW_USERS:
            room = min(rows * k, MOST_NOTED)
            users, items = torch.empty(2, room, dtype=torch.long)
            self._notes = users, items, like.new_empty(room)

    def scan(self, tile: Tensor, group: int, *, first_id: int) -> None:
        """Note the candidates among a tile of scores.

        Args:
            tile: `[G·group, K, B]` scores of consecutive items by interest and user.
            group: Items per group.
            first_id: Id of the tile's first item.
        """
        if self.items_merged and self._scan_compiled(tile, group, first_id):
            return
        n, K, B = tile.shape
        k = self.scores.shape[1]
        threshold = self.scores[:, -1]  # [B]; what the list already holds
        group_max = tile.view(n // group, group * K, B).amax(dim=1)  # [G, B]
        wanted = group_max > threshold
        floor = None
        if len(group_max) > k and int(wanted.count_nonzero()) > k * B:
            # The k best groups hold k items at least as good as the k-th group's maximum.
            floor = group_max.topk(k, dim=0, sorted=False).values.amin(dim=0)  # [B]
            wanted &= group_max >= floor
        groups, users = wanted.nonzero(as_tuple=True)
        scores = tile.view(n // group, group, K, B)[groups, :, :, users].amax(dim=2)  # [H, group]
        keep = scores > threshold[users, None]
        if floor is not None:
            keep &= scores >= floor[users, None]
        hits, offsets = keep.nonzero(as_tuple=True)
        if len(hits):
            item_ids = groups[hits] * group + offsets + first_id
            self._pending.append((users[hits], item_ids, scores[hits, offsets]))

    def _scan_compiled(self, tile: Tensor, group: int, first_id: int) -> bool:
        """`scan` in one pass; False where that cannot be, or would note too much."""
        if self._notes is None:
            return False
        from crossbatch.retrieval.scan_kernel import above

        threshold, notes = self.scores[:, -1], [note.numpy() for note in self._notes]
        count = above(tile.numpy(), group, threshold.contiguous().numpy(), *notes)
        if count > 0:
            users, items, scores = (note[:count].clone() for note in self._notes)
            self._pending.append((users, items + first_id, scores))
        return bool(count >= 0)

    def merge(self, *, items_seen: int) -> None:
        """Take the noted candidates into the lists."""
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
