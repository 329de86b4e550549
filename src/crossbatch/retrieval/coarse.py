"""`CoarseScores`: exact lists at a third of the cost, where the processor multiplies bfloat16.

All items are scored in bfloat16, and a bound on the error of these scores tells which items could
be among the k best; those few are scored again in float32. A user for whom they are too many is
reported, and searched for in full.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from crossbatch.queries import combined, rows_of, weights_of
from crossbatch.retrieval.topk import forbid

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.queries import Queries
    from crossbatch.retrieval.allowed import Allowed

ROUNDING = 2.0**-8  # largest relative error of a number in bfloat16
SLACK = 1.001  # for sums in float32, whose rounding is far smaller
CANDIDATES = 2  # items scored again, as a multiple of k
LARGEST_SCORE = 80.0  # beyond it exp() of a float32 may overflow
BLOCK_SCORES = 1 << 22  # scores of a block of users; about what stays in the cache
FEWEST_INTERESTS = 4  # of a user; with fewer, finding the candidates costs what the product saves
FEWEST_ROWS = 64  # interests of all users
ITEMS = (1 << 12, 1 << 18)  # fewest and most: more are streamed in tiles


@cache
def _multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for it; without them it would be slower."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, lambda: False)()) for name in names)


class CoarseScores:
    """Item vectors in bfloat16, and how far they are from the exact ones.

    Args:
        vectors: `[N + 1, d]` float32 item vectors on the CPU; row 0 is never returned.
    """

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self.rounded = vectors.bfloat16()
        self.error = float((vectors - self.rounded.float()).norm(dim=1).max())
        self.longest = float(vectors.norm(dim=1).max())

    @staticmethod
    def pay(vectors: Tensor, interests: Tensor | Queries, k: int) -> bool:
        """Whether they speed up a search for k items among some vectors."""
        B, K, _ = weights_of(interests)[0].shape
        return (
            vectors.device.type == "cpu"
            and vectors.dtype == torch.float32
            and min(K, B * K // (FEWEST_ROWS // FEWEST_INTERESTS)) >= FEWEST_INTERESTS
            and max(ITEMS[0], CANDIDATES * k) < len(vectors) <= ITEMS[1]
            and _multiplies_bfloat16()
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
        B, K, _ = weights_of(interests)[0].shape
        rows = max(1, BLOCK_SCORES // (K * len(self.vectors)))
        blocks = [slice(start, start + rows) for start in range(0, B, rows)]
        found = [
            self._search_block(
                rows_of(interests, block), k, None if exclude is None else exclude[block], allowed
            )
            for block in blocks
        ]
        scores, item_ids, certain = map(torch.cat, zip(*found, strict=True))
        return scores, item_ids, certain

    def _search_block(
        self,
        interests: Tensor | Queries,
        k: int,
        exclude: Tensor | None,
        allowed: Allowed | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        vectors, log_weights = weights_of(interests)
        b, K, d = vectors.shape
        rounded = vectors.bfloat16()
        coarse = torch.mm(rounded.view(b * K, d), self.rounded.T).view(b, K, -1)
        bound, largest = self._bound(vectors, rounded)
        if log_weights is None:
            totals = coarse.amax(dim=1).float()
        else:  # Σ weight · exp(score), which grows with its logarithm
            totals = torch.bmm(log_weights.exp().unsqueeze(1), coarse.float().exp_()).squeeze(1)
        forbid(totals, len(self.vectors), exclude, allowed)
        top, candidates = totals.topk(CANDIDATES * k, dim=1)
        kth, last = top[:, k - 1], top[:, -1]
        # An item that is not a candidate has at most the coarse score of the last one. It is out of
        # the list if that is below the k-th coarse score by more than both can be wrong.
        floor = kth - 2 * bound if log_weights is None else kth * torch.exp(-2 * bound)
        certain = (last < floor) & (largest <= LARGEST_SCORE)
        item_ids = candidates.sort(dim=1).values  # of equal scores the smaller id comes first
        exact = torch.bmm(vectors, self.vectors[item_ids].transpose(1, 2))
        exact = combined(exact, log_weights)
        if exclude is not None or allowed is not None:
            # Candidates that are excluded: only where a user has fewer than that many others.
            exact = exact.masked_fill(totals.gather(1, item_ids).isneginf(), -torch.inf)
            certain &= ~kth.isneginf()
        scores, order = exact.sort(dim=1, descending=True, stable=True)
        return scores[:, :k].clone(), item_ids.gather(1, order)[:, :k], certain

    def _bound(self, vectors: Tensor, rounded: Tensor) -> tuple[Tensor, Tensor]:
        """`[b]` how far the coarse scores of a user can be from the exact ones, and their largest.

        q·v − q'·v' = (q − q')·v + q'·(v − v'), and the product is rounded once more. A log-sum-exp
        is never further off than the worst of its terms, and neither is a maximum.
        """
        error = (vectors - rounded.float()).norm(dim=2).amax(dim=1)
        length = vectors.norm(dim=2).amax(dim=1)
        largest = (length + error) * (self.longest + self.error)
        bound = error * self.longest + (length + error) * self.error + ROUNDING * largest
        return SLACK * bound, largest
