"""Where each held-out item stands in its user's list: the one thing all metrics are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Ids = Tensor | Sequence[int]

# Target × list comparisons done at once; bounds the memory of the search, not its result.
COMPARISONS = 1 << 21
# Rank of a target that is not in the list: beyond any k.
ABSENT = 1 << 31


@dataclass(frozen=True, slots=True)
class Hits:
    """T held-out items of U users, in the users' order and each user's chronological order."""

    users: Tensor  # [T] row of the user, ascending
    ranks: Tensor  # [T] 0-based position in the user's list, or ABSENT
    order: Tensor  # [T] 0-based position among the user's targets
    first: Tensor  # [T] bool: not a repetition of an earlier target of the same user
    num_users: int

    def per_user(self, values: Tensor) -> Tensor:
        """Sum `[T]` values within each user, as `[U]` float64."""
        total = torch.zeros(self.num_users, dtype=torch.float64, device=values.device)
        return total.index_add_(0, self.users, values.double())

    def only(self, keep: Tensor) -> "Hits":
        """Return the hits of a slice of the targets, `keep` `[T]` bool; the users stay the same."""
        return Hits(
            self.users[keep],
            self.ranks[keep],
            self.order[keep],
            self.first[keep],
            self.num_users,
        )


def find_hits(ranked: Tensor, target_ids: Tensor, target_offsets: Tensor) -> Hits:
    """Locate every target in its user's list.

    Args:
        ranked: `[U, k]` item ids, best first; 0 is an empty slot and never a hit.
        target_ids: `[T]` held-out items of all users, one user after another.
        target_offsets: `[U + 1]`; user u's targets are `target_ids[offsets[u]:offsets[u + 1]]`.
    """
    U, k = ranked.shape
    lengths = target_offsets.diff()
    users = torch.repeat_interleave(torch.arange(U, device=ranked.device), lengths)
    order = torch.arange(len(users), device=ranked.device) - target_offsets[:-1][users]
    ranks = torch.full_like(users, ABSENT)
    chunk = max(1, COMPARISONS // max(k, 1))
    for start in range(0, len(users) if k else 0, chunk):
        part = slice(start, start + chunk)
        wanted = target_ids[part, None]
        found = (ranked[users[part]] == wanted) & (wanted != 0)  # [chunk, k]
        # The first place counts, should a list repeat an item: argmax gives the first maximum.
        ranks[part] = found.byte().argmax(dim=1).where(found.any(dim=1), ABSENT)
    return Hits(users, ranks, order, _first_occurrences(users, target_ids), U)


def flatten_targets(targets: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Return (`[T]` ids, `[U + 1]` offsets) of a list of id sequences."""
    rows = [torch.as_tensor(row, dtype=torch.long).reshape(-1) for row in targets]
    lengths = torch.tensor([0] + [len(row) for row in rows])
    flat = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)
    return flat, lengths.cumsum(dim=0)


def _first_occurrences(users: Tensor, ids: Tensor) -> Tensor:
    """Flag `[T]` entries whose (user, id) did not occur before."""
    by_id = ids.argsort(stable=True)
    by_both = by_id[users[by_id].argsort(stable=True)]
    users, ids = users[by_both], ids[by_both]
    first = torch.ones_like(users, dtype=torch.bool)
    first[1:] = (users[1:] != users[:-1]) | (ids[1:] != ids[:-1])
    return torch.empty_like(first).scatter_(0, by_both, first)
