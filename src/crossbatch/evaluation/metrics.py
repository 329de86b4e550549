"""Ranking metrics, one number per user.

    recall(ranked, targets, k)  # ranked [U, k] item ids, targets: U sequences of ids -> [U]

For a user, T is the list of held-out items in chronological order (n of them, repeats kept), R the
first k of the ranked list, h the number of entries of T that are in R. Decided cases:

- no target: every metric is undefined, NaN (leave such users out of a mean);
- repeated target: recall counts each occurrence, above and below the fraction bar; ComiRec's
  published NDCG too; all others look at distinct items;
- a list shorter than k, or id 0 in it: slots without a recommendation, never a hit.

All are made of `Hits`: where each held-out item stands in its user's list. Each is defined once, on
these (`recall_of`), and offered on lists (`recall`).
"""

from collections.abc import Callable, Sequence
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


Ranked = Tensor | Sequence[Sequence[int]]
Metric = Callable[[Hits, int], Tensor]  # of located targets: found once for all metrics and k
ListMetric = Callable[[Ranked, Sequence[Ids], int], Tensor]


def recall_of(hits: Hits, k: int) -> Tensor:
    """Share of the held-out items found: h / n, `[U]`."""
    n = hits.per_user(torch.ones_like(hits.ranks))
    return hits.per_user(hits.ranks < k) / n  # 0 / 0 is NaN: undefined without a target


def hit_rate_of(hits: Hits, k: int) -> Tensor:
    """1 for a user with at least one held-out item in the list, else 0, `[U]`."""
    found = hits.per_user(hits.ranks < k) > 0
    return _where_defined(hits, found.double())


def precision_of(hits: Hits, k: int) -> Tensor:
    """Share of the k places that hold a held-out item, `[U]`; a shorter list counts as k places."""
    return _where_defined(hits, hits.per_user(hits.first & (hits.ranks < k)) / k)


def mrr_of(hits: Hits, k: int) -> Tensor:
    """Reciprocal rank of the first held-out item in the list, 0 if there is none, `[U]`."""
    gain = (1.0 / (hits.ranks.double() + 1.0)) * (hits.ranks < k)
    best = gain.new_zeros(hits.num_users)
    return _where_defined(hits, best.scatter_reduce(0, hits.users, gain, "amax"))


def average_precision_of(hits: Hits, k: int) -> Tensor:
    """Average precision, whose mean over users is MAP, `[U]`.

    The precision at the rank of each hit, summed and divided by min(n, k), n counting distinct
    held-out items, so that a perfect list scores exactly 1.
    """
    found = hits.only(hits.first & (hits.ranks < k))
    order = (found.users * k + found.ranks).argsort()
    users, ranks = found.users[order], found.ranks[order]
    place = torch.arange(len(users), device=users.device) - torch.searchsorted(users, users)
    total = torch.zeros(hits.num_users, dtype=torch.float64, device=users.device)
    total.index_add_(0, users, (place + 1).double() / (ranks + 1).double())
    return total / hits.per_user(hits.first).clamp(max=k)


def ndcg_of(hits: Hits, k: int) -> Tensor:
    """Textbook NDCG, `[U]`: Σ 1/log2(rank + 1) over hits, divided by its largest possible value.

    The ideal list holds min(n, k) hits at its head, n counting distinct held-out items, so that a
    perfect list scores exactly 1.
    """
    gain = _discount(hits.ranks) * (hits.first & (hits.ranks < k))
    distinct = hits.per_user(hits.first)
    return hits.per_user(gain) / _ideal(distinct.clamp(max=k))


def ndcg_comirec_of(hits: Hits, k: int) -> Tensor:
    """The NDCG behind the paper's tables (ComiRec's first release), `[U]`.

    Deviation from the textbook: the gain 1/log2(i + 2) goes by the index i of the hit in the
    *target list*, not by its rank, and the ideal holds h hits, the number obtained. A user with a
    hit therefore scores close to 1 and the mean exceeds recall. Compare published numbers with this
    one, models with `ndcg`.
    """
    found = hits.ranks < k
    return _over_obtained(hits, _discount(hits.order) * found, found)


def ndcg_comirec_master_of(hits: Hits, k: int) -> Tensor:
    """ComiRec's NDCG after July 2021, `[U]`: gains by rank, ideal still over the hits obtained."""
    found = hits.first & (hits.ranks < k)
    return _over_obtained(hits, _discount(hits.ranks) * found, found)


# The metrics an evaluation reports; a new one is a function and a line here.
METRICS: dict[str, Metric] = {
    "recall": recall_of,
    "hit_rate": hit_rate_of,
    "precision": precision_of,
    "mrr": mrr_of,
    "map": average_precision_of,
    "ndcg": ndcg_of,
    "ndcg_comirec": ndcg_comirec_of,
    "ndcg_comirec_master": ndcg_comirec_master_of,
}


def _on_lists(metric: Metric) -> ListMetric:
    """The metric as a function of lists and targets, with the same documentation."""

    def measured(ranked: Ranked, targets: Sequence[Ids], k: int) -> Tensor:
        table = torch.as_tensor(ranked)
        if table.dim() != 2 or len(table) != len(targets):
            raise ValueError(
                f"ranked must be [U, k] with one row per user, got {list(table.shape)} "
                f"for {len(targets)} target lists"
            )
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        ids, offsets = flatten_targets(targets)
        hits = find_hits(table.long(), ids.to(table.device), offsets.to(table.device))
        return metric(hits, k)

    measured.__doc__ = metric.__doc__
    measured.__name__ = measured.__qualname__ = metric.__name__.removesuffix("_of")
    return measured


recall = _on_lists(recall_of)
hit_rate = _on_lists(hit_rate_of)
precision = _on_lists(precision_of)
mrr = _on_lists(mrr_of)
average_precision = _on_lists(average_precision_of)
ndcg = _on_lists(ndcg_of)
ndcg_comirec = _on_lists(ndcg_comirec_of)
ndcg_comirec_master = _on_lists(ndcg_comirec_master_of)


def _discount(position: Tensor) -> Tensor:
    """Gain 1/log2(position + 2) of 0-based positions."""
    return 1.0 / torch.log2(position.double() + 2.0)


def _ideal(count: Tensor) -> Tensor:
    """Σ_{j=1..count} 1/log2(j + 1): `[U]` float64 counts → `[U]`."""
    top = int(count.max()) if len(count) else 0
    sums = torch.cat([count.new_zeros(1), _discount(torch.arange(top)).to(count).cumsum(dim=0)])
    return sums[count.long()]


def _over_obtained(hits: Hits, gain: Tensor, found: Tensor) -> Tensor:
    """Gains divided by the ideal of as many hits as were obtained; 0 where there is none."""
    ideal = _ideal(hits.per_user(found))
    return _where_defined(hits, hits.per_user(gain) / ideal.where(ideal > 0, 1.0))


def _where_defined(hits: Hits, values: Tensor) -> Tensor:
    """NaN for users without a target."""
    defined = hits.per_user(torch.ones_like(hits.ranks)) > 0
    return values.where(defined, torch.nan)
