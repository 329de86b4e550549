"""`Allowed`: the items that a search may return, prepared once for many searches.

allowed = Allowed(in_stock)                      # [N + 1] bool
index.search(interests, k=20, allowed=allowed)   # what it costs to prepare is paid once
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Allowed:
    """A set of items, and what searches derive from it.

    Args:
        mask: `[N + 1]` bool, row = item id; row 0 is padding and does not matter.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self._rows: tuple[Tensor, Tensor] | None = None  # vectors, and their rows of the set

    @classmethod
    def of(cls, allowed: Tensor | Allowed) -> Allowed:
        """The same, whichever it is given as."""
        return allowed if isinstance(allowed, Allowed) else cls(allowed)

    def to(self, device: torch.device) -> Allowed:
        """The same on a device."""
        return self if self.mask.device == device else Allowed(self.mask.to(device))

    @cached_property
    def count(self) -> int:
        """How many items there are."""
        return int(self.mask[1:].count_nonzero())

    @cached_property
    def item_ids(self) -> Tensor:
        """`[count + 1]` int64, ascending, after a 0 for the padding."""
        item_ids = self.mask.nonzero().squeeze(1)
        item_ids = item_ids[item_ids > 0]
        return torch.cat([item_ids.new_zeros(1), item_ids])

    @cached_property
    def penalty(self) -> Tensor:
        """`[N + 1]` float32: 0 for an item of the set, −∞ for the others."""
        return torch.where(self.mask, 0.0, -torch.inf)

    @cached_property
    def bits(self) -> Any:
        """One bit an item, padding left out, as a NumPy array of bytes, for faiss."""
        numpy = import_module("numpy")  # faiss needs it, this package does not
        return numpy.packbits(self.mask[1:].cpu().numpy(), bitorder="little")

    def rows_of(self, vectors: Tensor) -> Tensor:
        """The rows of vectors `[N + 1, d]` of the set, padding first: `[count + 1, d]`."""
        if self._rows is None or self._rows[0] is not vectors:
            self._rows = vectors, vectors[self.item_ids]
        return self._rows[1]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, at most."""
        rows = 0 if self._rows is None else 4 * self._rows[1].numel()
        return 6 * len(self.mask) + rows
