"""The two values that cross every boundary of this package: `Candidates` and `Corpus`.

Sampling strategies differ only in *which item columns enter the softmax*, so a strategy is a
function that returns columns, and columns add up:

    negatives = positives + bank.read()        # M ∪ B, Eq. 9
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class Candidates:
    """Item columns of a softmax: their vectors, ids and log-probabilities of being drawn.

    `a + b` is the union ∪ with repeats kept. A sum remembers its parts, so that the loss can give
    gradient to the columns that need one and spend nothing on the cached ones; `embeddings`,
    `item_ids` and `log_q` join the parts when they are first read.

    Args:
        embeddings: `[N, d]` item vectors, floating point.
        item_ids: `[N]` int64; columns with the row's own positive id never count as negatives.
        log_q: `[N]` log-probability of each column under its proposal. Constants cancel.
        cached: Whether these columns come from a memory bank. The loss treats them as constants
            and mask mode `"batch"` leaves them alone.
        first_row: Column of the first row's own positive, where these are the positives of a batch
            that several processes share and the rows are those of one.
        push: Factor of the gradient that these columns get as negatives; see `balanced`.
        live: Whether cached columns take a gradient all the same; see `GradientBank`.
    """

    __slots__ = (
        "_embeddings",
        "_item_ids",
        "_log_q",
        "_summands",
        "cached",
        "first_row",
        "live",
        "push",
    )

    cached: bool
    first_row: int
    push: float
    live: bool
    _summands: tuple[Candidates, ...]
    _embeddings: Tensor | None
    _item_ids: Tensor | None
    _log_q: Tensor | None

    def __init__(
        self,
        embeddings: Tensor,
        item_ids: Tensor,
        log_q: Tensor,
        *,
        cached: bool = False,
        first_row: int = 0,
        push: float = 1.0,
        live: bool = False,
    ) -> None:
        named = {"embeddings": embeddings, "item_ids": item_ids, "log_q": log_q}
        for name, value in named.items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"{name} must be a tensor, got {type(value).__name__}; convert it with "
                    "torch.as_tensor"
                )
        if embeddings.dim() != 2 or not embeddings.is_floating_point():
            raise ValueError(
                "embeddings must be a floating-point tensor of shape [N, d], got "
                f"{embeddings.dtype} of shape {list(embeddings.shape)}"
            )
        num_columns = embeddings.shape[0]
        if item_ids.dtype != torch.int64:
            raise ValueError(
                f"item_ids must be int64, got {item_ids.dtype}; convert them with .long()"
            )
        for name, value in (("item_ids", item_ids), ("log_q", log_q)):
            if value.shape != (num_columns,):
                raise ValueError(
                    f"{name} must hold one entry per embedding, [{num_columns}], "
                    f"got shape {list(value.shape)}"
                )
        if not log_q.is_floating_point():
            raise ValueError(f"log_q must be floating point, got {log_q.dtype}")
        self._embeddings, self._item_ids, self._log_q = embeddings, item_ids, log_q
        self.cached, self.first_row, self.push = cached, first_row, push
        self.live = live or not cached
        self._summands = ()

    @property
    def parts(self) -> tuple[Candidates, ...]:
        """The columns this is the sum of; itself if it is none."""
        # Not stored: a value that refers to itself, and with it the towers' graph, would stay
        # in memory until the garbage collector comes by.
        return self._summands or (self,)

    @property
    def embeddings(self) -> Tensor:
        """`[N, d]` vectors of all columns, parts in the order they were added."""
        if self._embeddings is None:
            self._embeddings = torch.cat([part.embeddings for part in self.parts])
        return self._embeddings

    @property
    def item_ids(self) -> Tensor:
        """`[N]` ids of all columns."""
        if self._item_ids is None:
            self._item_ids = torch.cat([part.item_ids for part in self.parts])
        return self._item_ids

    @property
    def log_q(self) -> Tensor:
        """`[N]` log-probabilities of all columns."""
        if self._log_q is None:
            self._log_q = torch.cat([part.log_q for part in self.parts])
        return self._log_q

    @property
    def dim(self) -> int:
        """Dimension d of the vectors."""
        return self.parts[0].embeddings.shape[1]

    def __len__(self) -> int:
        return sum(part.item_ids.shape[0] for part in self.parts)

    def __add__(self, other: Candidates) -> Candidates:
        if self.dim != other.dim:
            raise ValueError(
                f"candidates of dimension {self.dim} and {other.dim} cannot be added; "
                "encode both with the same item tower"
            )
        union = object.__new__(Candidates)
        union._summands = self.parts + other.parts
        union.cached, union.first_row = self.cached and other.cached, self.first_row
        union.push, union.live = 1.0, self.live or other.live  # the parts have theirs
        union._embeddings = union._item_ids = union._log_q = None
        return union

    def __repr__(self) -> str:
        sizes = " + ".join(str(len(part)) for part in self.parts)
        return f"Candidates({sizes} columns, dim={self.dim})"

    def detached(self) -> Candidates:
        """The same columns as constants, marked as cached."""
        return Candidates(self.embeddings.detach(), self.item_ids, self.log_q.detach(), cached=True)


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """All that a sampler may know of the world.

    Attributes:
        item_counts: `[num_items + 1]` how often each item is a training positive, as counts or as
            any multiple of probabilities (see `frequency`). Row 0 is padding and never sampled.
        dim: Dimension d of the item vectors.
    """

    item_counts: Tensor
    dim: int

    def __post_init__(self) -> None:
        check_counts(self.item_counts)
        if not bool((self.item_counts[1:] > 0).any()):
            raise ValueError("item_counts are all zero; count the items of the training part")
        if self.dim < 1:
            raise ValueError(f"dim must be at least 1, got {self.dim}")

    @property
    def num_items(self) -> int:
        """Number of items; their ids are 1 to num_items."""
        return int(self.item_counts.shape[0]) - 1


def check_counts(item_counts: Tensor) -> None:
    """Raise `ValueError` unless `item_counts` can be a table of counts or probabilities."""
    if not isinstance(item_counts, Tensor):
        raise ValueError(
            f"item_counts must be a tensor, got {type(item_counts).__name__}; "
            "convert it with torch.as_tensor"
        )
    if item_counts.is_complex():
        raise ValueError(f"item_counts must be real numbers, got {item_counts.dtype}")
    if item_counts.dim() != 1 or item_counts.shape[0] < 2:
        raise ValueError(
            "item_counts must have shape [num_items + 1] with row 0 for padding, "
            f"got {list(item_counts.shape)}"
        )
    broken = ~torch.isfinite(item_counts) | (item_counts < 0)
    if bool(broken.any()):
        raise ValueError(
            "item_counts must be finite and not negative, got "
            f"{float(item_counts[broken][0])}; check how they were made"
        )
