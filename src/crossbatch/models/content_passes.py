"""Content on its way into an item tower and back, without a graph: see `passes`.

Categories are rows of a table, which `ItemsPass` reads together with the ids. Everything else has a
pass of its own, from ids to vectors and from their gradient to whatever learns:

    vectors, backward = TagsPass(encoder)(item_ids)     # [N, w]
    backward(gradient)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from .embedding import Read
from .features import DenseEncoder, MultiValuedEncoder, NumericEncoder
from .pass_parts import Arrays, Ending, keeper_of

Array = np.ndarray
# From ids `[N]` to vectors `[N, w]`, and from their gradient to whatever learns.
ContentPass = Callable[[Tensor], tuple[Array, Callable[[Array], object]]]


class TagsPass:
    """The mean of the vectors of a row's values."""

    def __init__(self, encoder: MultiValuedEncoder) -> None:
        from . import rows_kernel

        table = encoder.table
        assert table.offsets is not None
        self.values, self.offsets = table.values.numpy(), table.offsets.numpy()
        self.embedding = encoder.embedding
        self.weight = Arrays([self.embedding.weight])
        self._rows = rows_kernel

    def __call__(self, item_ids: Tensor) -> tuple[Array, Callable[[Array], None]]:
        """Vectors `[N, w]` of items `[N]`; zeros for one without values."""
        found, bags = self._rows.bags_of(self.values, self.offsets, item_ids.numpy())
        rows, bags_of_rows = torch.from_numpy(found), torch.from_numpy(bags)
        keeper = keeper_of(self.embedding)
        keeper.before_read(rows)
        vectors = np.empty((len(item_ids), self.embedding.dim), dtype=np.float32)
        share = np.empty(len(item_ids), dtype=np.float32)
        self._rows.mean_bags(self.weight()[0], found, bags, vectors, share)

        def backward(gradient: Array) -> None:
            self._rows.scale_rows(gradient, share)
            leaf = torch.from_numpy(gradient)
            keeper.after_read(Read(rows, bags_of_rows, leaf, given=True))

        return vectors, backward


class NumbersPass:
    """Columns as they stand, or through the linear layer of their encoder."""

    def __init__(self, encoder: NumericEncoder) -> None:
        self.values = encoder.table.values.numpy()
        layer = encoder.layer
        plain = isinstance(layer, nn.Identity)
        self.ending = None if plain else Ending((layer,), normalize=False, to_input=False)

    def __call__(self, item_ids: Tensor) -> tuple[Array, Callable[[Array], object]]:
        """Vectors `[N, w]` of items `[N]`."""
        # A map of a file is read here, row by row; other types of number become float32.
        numbers = np.asarray(self.values[item_ids.numpy()], dtype=np.float32)
        return self.ending(numbers) if self.ending else (numbers, lambda _: None)


# By exact type: an encoder that somebody derived from these may do something else.
CONTENT_PASSES: dict[type[nn.Module], Callable[..., ContentPass]] = {
    MultiValuedEncoder: TagsPass,
    NumericEncoder: NumbersPass,
    DenseEncoder: NumbersPass,
}
