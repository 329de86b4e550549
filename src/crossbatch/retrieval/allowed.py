"""`Allowed`: the items that a search may return, prepared once for many searches.

allowed = Allowed(in_stock)                      # [N + 1] bool
index.search(interests, k=20, allowed=allowed)   # what it costs to prepare is paid once
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.retrieval.index import ExactIndex


class Allowed:
    """A set of items, and what searches derive from it.

    Args:
        mask: `[N + 1]` bool, row = item id; row 0 is padding and does not matter.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self._part: tuple[Tensor, ExactIndex] | None = None  # vectors, and the index of the set's

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
        if self.mask.is_cpu and find_spec("numpy"):  # three times as fast as torch
            numpy = import_module("numpy")
            item_ids = torch.from_numpy(numpy.flatnonzero(self.mask.numpy()))
        else:
            item_ids = self.mask.nonzero().squeeze(1)
        return torch.cat([item_ids.new_zeros(1), item_ids[item_ids > 0]])

    @cached_property
    def penalty(self) -> Tensor:
        """`[N + 1]` float32: 0 for an item of the set, −∞ for the others."""
        return self.mask.float().reciprocal_().neg_().add_(1.0)  # ten times as fast as `where`

    @cached_property
    def bits(self) -> Any:
        """One bit an item, padding left out, as a NumPy array of bytes, for faiss."""
        numpy = import_module("numpy")  # faiss needs it, this package does not
        return numpy.packbits(self.mask[1:].cpu().numpy(), bitorder="little")

    def part_of(self, index: ExactIndex) -> ExactIndex:
        """An index of the same kind over the items of the set alone; ids are places in `item_ids`.

        It is kept for the next search: its vectors `[count + 1, d]` are a copy.
        """
        if self._part is None or self._part[0] is not index.vectors:
            self._part = index.vectors, index.part(self.item_ids)
        return self._part[1]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, with what was prepared for searches so far."""
        prepared = {"item_ids", "penalty", "bits"} & vars(self).keys()
        rows = 0 if self._part is None else self._part[1].vectors.nbytes
        return int(self.mask.nbytes + rows + sum(getattr(self, name).nbytes for name in prepared))
