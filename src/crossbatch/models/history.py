"""`History`: the items of a batch of histories as user towers read them, without padding.

    history.items, history.stops        # [P, w] end to end, and [B] where each history ends
    history.mean()                      # [B, w]
    history.recency_mean(log_weights)   # [B, w], weighted by age
    history.padded()                    # [B, L, w] and a mask [B, L]

Before they are read, histories are item ids `[B, L]` int64, oldest first, with 0 for padding, some
of which `drop_items` drops at random. Of a batch that several processes share each draws the noise
of all rows and keeps its own:

    with rows_of(start=64, total=128, generator=shared):
        noise = uniform_rows((64, 20), device)      # rows 64..127 of one draw of [128, 20]
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from crossbatch.kernels.history_means import history_mean, recency_mean
from crossbatch.kernels.ragged import lengths, pad

AGES = 200  # items of a history whose age towers tell apart; older ones count as this old


class History:
    """Vectors of the items of B histories; `items, stops = history` unpacks it.

    Args:
        read: Returns the items `[P, w]` of all histories, end to end.
        stops: `[B]` int64, where each history ends.
        read_mean: Returns their means `[B, w]` where those can be had without the items.
    """

    def __init__(
        self,
        read: Callable[[], Tensor],
        stops: Tensor,
        read_mean: Callable[[], Tensor] | None = None,
    ) -> None:
        self._read, self.stops, self._read_mean = read, stops, read_mean

    @cached_property
    def items(self) -> Tensor:
        """`[P, w]` vectors of all histories' items, end to end, oldest first."""
        return self._read()

    @property
    def lengths(self) -> Tensor:
        """`[B]` items of each history."""
        return lengths(self.stops)

    def mean(self) -> Tensor:
        """`[B, w]` mean vector of each history; zeros for an empty one."""
        return self._read_mean() if self._read_mean else history_mean(self.items, self.stops)

    def recency_mean(self, log_weights: Tensor) -> Tensor:
        """`[B, w]` mean with the weights softmax(log_weights[age]); zeros for an empty history.

        Args:
            log_weights: `[A]` of each age, the number of items after one; the last is that of all
                older items too.
        """
        return recency_mean(self.items, self.stops, log_weights)

    def padded(self, layer: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """`[B, L, w]` vectors with zeros behind each history, and a mask `[B, L]`.

        Args:
            layer: Applied to the items before they are padded.
        """
        return pad(layer(self.items) if layer else self.items, self.stops)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.items, self.stops))


class PaddedHistory(History):
    """Histories that were given as vectors `[B, L, w]` and a mask `[B, L]`.

    In graph export shapes are fixed: there, towers use nothing but `padded` and the means.
    """

    def __init__(self, vectors: Tensor, mask: Tensor) -> None:
        super().__init__(lambda: vectors[mask], mask.sum(dim=1).cumsum(dim=0))
        self._vectors, self._mask = vectors, mask

    def mean(self) -> Tensor:
        """`[B, w]` mean vector of each history; zeros for an empty one."""
        weights = self._mask.to(self._vectors.dtype)
        weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(1)
        return torch.bmm(weights.unsqueeze(1), self._vectors).squeeze(1)

    def recency_mean(self, log_weights: Tensor) -> Tensor:
        """`[B, w]` mean with the weights softmax(log_weights[age]); zeros for an empty history."""
        age = self._mask.flip(1).cumsum(dim=1).flip(1) - 1
        logits = log_weights.to(self._vectors.dtype)[age.clamp(0, len(log_weights) - 1)]
        # A finite number: a history of nothing but −inf would be NaN.
        weights = logits.masked_fill(~self._mask, -1e30).softmax(dim=1) * self._mask
        return torch.bmm(weights.unsqueeze(1), self._vectors).squeeze(1)

    def padded(self, layer: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """As they were given, with zeros where the mask is False."""
        vectors = layer(self._vectors) if layer else self._vectors
        return torch.where(self._mask.unsqueeze(-1), vectors, 0.0), self._mask


def drop_items(history: Tensor, rate: float) -> Tensor:
    """Blank each item of each history with probability `rate`, but never a whole history.

    Args:
        history: `[B, L]`.
        rate: In [0, 1).

    Returns:
        `[B, L]`, with 0 in the place of dropped items.
    """
    noise = uniform_rows(history.shape, history.device)
    noise = noise.masked_fill(history == 0, -1.0)
    # The largest draw of a row always stays: it is the likeliest survivor anyway.
    keep = (noise >= rate) | (noise == noise.amax(dim=1, keepdim=True))
    return history * keep


@dataclass(frozen=True, slots=True)
class _Rows:
    start: int
    total: int
    generator: torch.Generator


_rows: ContextVar[_Rows | None] = ContextVar("rows", default=None)


@contextmanager
def rows_of(start: int, total: int, generator: torch.Generator) -> Iterator[None]:
    """Inside, rows are those from `start` on of a batch of `total`.

    Args:
        start: Place of the first row in the whole batch.
        total: Rows of the whole batch.
        generator: Source of its noise, in the same state in every process that has a part.
    """
    before = _rows.set(_Rows(start, total, generator))
    try:
        yield
    finally:
        _rows.reset(before)


def uniform_rows(shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
    """Uniform noise of `shape` `[B, …]`, whatever number of processes the batch is spread over."""
    rows = _rows.get()
    if rows is None:
        return torch.rand(shape, device=device)
    whole = torch.rand(rows.total, *shape[1:], device=device, generator=rows.generator)
    return whole[rows.start : rows.start + shape[0]]
