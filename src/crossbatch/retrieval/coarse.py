"""`CoarseScores`: exact lists at a fraction of the cost, where the processor multiplies bytes.

All items are scored by products of 8-bit integers, far faster than those of float32. A bound on
the error of these scores tells which items could be among the k best; only those are scored
again in float32. A user for whom they are too many is reported, and searched for in full.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from crossbatch.kernels.coarse_scores import coarse_scores
from crossbatch.kernels.topk_scan import scores_above
from crossbatch.queries import combined, rows_of, weights_of
from crossbatch.retrieval.query_blocks import by_number, fewest_queries
from crossbatch.retrieval.topk import MAX_GROUP, Forbidden, below_kth_group, group_size, tile_items

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.queries import Queries
    from crossbatch.retrieval.allowed import Allowed

LARGEST_CODE = 127
ROUNDING = 2.0**-24  # largest relative error of a number in float32
SLACK = 1.001  # for the rounding of the errors themselves
LARGEST_SCORE = 80.0  # beyond it exp() of a float32 may overflow
# Items of a user that are scored again: so many times k or, in a large catalogue, a share of it,
# which takes less time than scoring all for this user, up to more times k.
MOST, SHARE, MOST_OF_MANY = 32, 16, 256
TILE_PRODUCTS = 1 << 21  # of a tile
BLOCK_ROWS = 512  # interests of a block of users
LANES = 16  # numbers that the processor handles at once: a block has a multiple of so many users
# With less to multiply, finding the candidates costs more than the products save: multiplications
# for each place of a user's list. Exponentials, of weighted queries, are saved in any case.
FEWEST_PRODUCTS = 1 << 19
FEWEST_ROWS = 64  # interests of all users
FEWEST_ITEMS, FEWEST_COLUMNS = 1 << 12, 16
ROUNDED_ROWS = 1 << 14  # items rounded at once
GATHERED = 1 << 22  # numbers of the vectors that are scored again at once


@cache
def _multiplies_bytes() -> bool:
    """Whether this processor has instructions for it, and torch uses them without saturation."""
    names = ("_is_vnni_supported", "_is_amx_tile_supported")
    if not any(bool(getattr(torch.cpu, name, lambda: False)()) for name in names):
        return False
    ends = torch.tensor([[LARGEST_CODE], [-LARGEST_CODE]], dtype=torch.int8).expand(2, 64)
    ends = ends.contiguous()
    try:
        return torch.equal(torch._int_mm(ends, ends.T), ends.int() @ ends.T.int())
    except (AttributeError, RuntimeError):
        return False


def rounded(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes int8 `[n, d]` of vectors, factors `[n]` that bring them back, and `[n]` errors."""
    factors = (vectors.abs().amax(dim=1) / LARGEST_CODE).clamp_min_(torch.finfo().tiny)
    whole = (vectors / factors[:, None]).round_().clamp_(-LARGEST_CODE, LARGEST_CODE)
    codes = whole.to(torch.int8)
    return codes, factors, whole.mul_(factors[:, None]).sub_(vectors).norm(dim=1)


class CoarseScores:
    """Item vectors as 8-bit integers, and how far these are from the exact ones.

    Args:
        vectors: `[N + 1, d]` float32 item vectors on the CPU; row 0 is never returned.
    """

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        parts = [rounded(some) for some in vectors.split(ROUNDED_ROWS)]
        self.codes, self.factors, errors = map(torch.cat, zip(*parts, strict=True))
        self.error = float(errors[1:].max())
        self.longest = float(vectors[1:].norm(dim=1).max())

    @staticmethod
    def pay(vectors: Tensor, interests: Tensor | Queries, k: int) -> bool:
        """Whether they speed up a search for k items among some vectors."""
        (B, K, d), N = weights_of(interests)[0].shape, len(vectors)
        weighted = weights_of(interests)[1] is not None
        return (
            vectors.device.type == "cpu"
            and vectors.dtype == torch.float32
            and B * K >= FEWEST_ROWS
            and d >= FEWEST_COLUMNS
            and max(FEWEST_ITEMS, 2 * k) < N
            and (weighted or N * K * d >= FEWEST_PRODUCTS * k)
            and _multiplies_bytes()
        )

    def search(
        self,
        interests: Tensor | Queries,
        k: int,
        exclude: Tensor | None,
        allowed: Allowed | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores `[B, k]`, item ids `[B, k]` and `[B]` whether a list is certain to be exact.

        Args:
            interests: `[B, K, d]` float32 vectors, or `Queries`.
            k: Length of the lists.
            exclude: `[B, X]` item ids never to return for that user; 0 means none.
            allowed: The items that may be returned to any user; None: all.
        """
        interests, order = by_number(interests)
        if exclude is not None and order is not None:
            exclude = exclude[order]
        found, start = [], 0
        while start < len(interests):
            some, rows = fewest_queries(interests, start, BLOCK_ROWS, LANES)
            block = slice(start, start + rows)
            banned = None if exclude is None else exclude[block]
            found.append(self._search_block(some, k, banned, allowed))
            start += rows
        scores, item_ids, certain = map(torch.cat, zip(*found, strict=True))
        if order is None:
            return scores, item_ids, certain
        back = order.argsort()
        return scores[back], item_ids[back], certain[back]

    def _search_block(
        self,
        interests: Tensor | Queries,
        k: int,
        exclude: Tensor | None,
        allowed: Allowed | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        vectors, log_weights = weights_of(interests)
        b, K, d = vectors.shape
        queries = vectors.transpose(0, 1).reshape(K * b, d)
        codes, factors, errors = rounded(queries)
        most = max(MOST * k, min(MOST_OF_MANY * k, len(self.vectors) // SHARE))
        bound, largest = self._bound(queries.norm(dim=1).view(K, b), errors.view(K, b))
        if log_weights is None:
            weights, shrunk = factors.new_empty(0, b), torch.ones_like(bound)
            found = Candidates(k, most, shrunk, 2 * bound, bound.isfinite())
        else:  # sums of weight · exp(score), which grow with their logarithm
            weights, shrunk = log_weights.T.exp(), torch.exp(-2 * bound)
            found = Candidates(k, most, shrunk, torch.zeros_like(bound), largest <= LARGEST_SCORE)
        factors, forbidden = factors.view(K, b), Forbidden(exclude, allowed, vectors.device)
        n = tile_items(len(self.vectors) - 1, K * b, TILE_PRODUCTS)
        products = torch.empty(n, K * b, dtype=torch.int32)
        for start in range(1, len(self.vectors), n):
            tile = self.codes[start : start + n]
            torch._int_mm(tile, codes.T, out=products[: len(tile)])
            of_items = self.factors[start : start + n]
            here = products[: len(tile)].view(-1, K, b)
            scores = coarse_scores(here, of_items, factors, weights, found.floor())
            forbidden.apply(scores.unsqueeze(1), start)
            found.scan(scores, first_id=start)
        found.merge()
        item_ids, sure = found.padded()
        return *self._best(interests, item_ids, k), sure

    def _best(self, interests: Tensor | Queries, item_ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best of candidates `[b, C]` in ascending order, 0 for none, by exact scores."""
        d, counts = self.vectors.shape[1], (item_ids != 0).sum(dim=1)
        counts, order = counts.clamp_min(k).sort(stable=True)  # those with about as many together
        found, start = [], 0
        while start < len(order):
            numbers = counts[start:] * torch.arange(1, len(order) - start + 1) * d
            users = max(1, int((numbers <= GATHERED).sum()))
            some, C = order[start : start + users], int(counts[start : start + users][-1])
            places = item_ids[some, :C]
            vectors, log_weights = weights_of(rows_of(interests, some))
            gathered = self.vectors.index_select(0, places.reshape(-1)).view(*places.shape, -1)
            scores = combined(torch.bmm(vectors, gathered.transpose(1, 2)), log_weights)
            scores = scores.masked_fill(places == 0, -torch.inf)
            # Of equal scores the smaller id comes first.
            ranked, ranking = scores.sort(dim=1, descending=True, stable=True)
            found.append((ranked[:, :k], places.gather(1, ranking[:, :k])))
            start += users
        scores, chosen = map(torch.cat, zip(*found, strict=True))
        back = order.argsort()
        return scores[back], chosen[back]

    def _bound(self, lengths: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """`[b]` how far the coarse scores of a user can be from the exact ones, and their largest.

        q·v − q'·v' = (q − q')·v + q'·(v − v'), and products of integers are exact. A log-sum-exp
        is never further off than the worst of its terms, and neither is a maximum. Sums of float32
        are rounded d times at most.
        """
        K, d = len(lengths), self.vectors.shape[1]
        error, length = errors.amax(dim=0), lengths.amax(dim=0)
        largest = (length + error) * (self.longest + self.error)
        bound = SLACK * (error * self.longest + (length + error) * self.error)
        return bound + 4 * ROUNDING * ((d + 16) * largest + K + 16), largest


class Candidates:
    """The items of b users that could be among their k best, while scored items stream past.

    Args:
        k: Length of the lists.
        most: Items of a user that may be scored again.
        shrunk, off: `[b]` an item whose score is below the k-th times `shrunk` minus `off` is out.
        usable: `[b]` whether there is such a limit.
    """

    def __init__(self, k: int, most: int, shrunk: Tensor, off: Tensor, usable: Tensor) -> None:
        self.k, self.most, self.shrunk, self.off = k, most, shrunk, off
        self.kth = torch.full_like(off, -torch.inf)  # lower bounds of the k-th scores
        self.sure = usable.clone()
        self.users, self.item_ids = torch.zeros(2, 0, dtype=torch.int64)
        self.scores = off.new_empty(0)
        self._found: list[tuple[Tensor, Tensor, Tensor]] = []
        self._count = self._seen = self._merged = 0

    def floor(self) -> Tensor:
        """`[b]` what a candidate's score must exceed; nothing does for a user who is given up."""
        floor = self.kth * self.shrunk - self.off
        return floor.nextafter(floor.new_tensor(-torch.inf)).where(self.sure, torch.inf)

    def scan(self, scores: Tensor, *, first_id: int) -> None:
        """Collect the candidates among items `[n, b]`."""
        n, b = scores.shape
        self._seen += n
        group = group_size(self._seen, self.k, MAX_GROUP)
        if filled := -n % group:
            scores = torch.cat([scores, scores.new_full((filled, b), -torch.inf)])
        tile = scores.unsqueeze(1)
        found = scores_above(tile, group, self.floor()) if self._merged else None
        if found is None or len(found[0]) > self.k * b:
            self.kth = torch.maximum(self.kth, below_kth_group(tile, group, self.k))
            found = scores_above(tile, group, self.floor())
        users, items, values = found
        self._found.append((users, items + first_id, values))
        self._count += len(users)
        if self._seen >= 2 * self._merged or self._count > self.most * b:
            self.merge()

    def merge(self) -> None:
        """Raise the limits by what was found, and keep what is above them."""
        b = len(self.kth)
        parts = [(self.users, self.item_ids, self.scores), *self._found]
        users, item_ids, scores = map(torch.cat, zip(*parts, strict=True))
        self._found, self._count, self._merged = [], 0, self._seen
        # A user with far too many is given up before they take memory.
        self.sure &= users.bincount(minlength=b) <= 4 * self.most
        keep = scores > self.floor()[users]
        users, order = users[keep].sort(stable=True)  # items of a user stay in ascending order
        item_ids, scores = item_ids[keep][order], scores[keep][order]
        counts = users.bincount(minlength=b)
        columns = torch.arange(len(users)) - (counts.cumsum(dim=0) - counts)[users]
        pool = scores.new_full((b, max(self.k, int(counts.max()))), -torch.inf)
        pool[users, columns] = scores
        self.kth = torch.maximum(self.kth, pool.topk(self.k, dim=1).values[:, -1])
        keep = scores > self.floor()[users]
        self.users, self.item_ids, self.scores = users[keep], item_ids[keep], scores[keep]

    def padded(self) -> tuple[Tensor, Tensor]:
        """Items `[b, C]` in ascending order, 0 for none, C ≥ k; `[b]` whether they are all."""
        b = len(self.kth)
        counts = self.users.bincount(minlength=b)
        # Fewer than k: a user to whom almost nothing may be returned.
        sure = self.sure & (counts >= self.k) & (counts <= self.most)
        here = sure[self.users]
        users, item_ids = self.users[here], self.item_ids[here]
        counts = counts * sure
        columns = torch.arange(len(users)) - (counts.cumsum(dim=0) - counts)[users]
        padded = item_ids.new_zeros(b, max(self.k, int(counts.max())))
        padded[users, columns] = item_ids
        return padded, sure
