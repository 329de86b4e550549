"""`CachedSoftmax`: the exact loss of a large batch in the memory of a small one (GradCache).

step = CachedSoftmax(CrossBatchSoftmax(dim=64), user_tower, item_tower, chunk_size=64)
loss = step(user_inputs, item_inputs, item_ids)     # a batch of thousands
loss.backward(); optimizer.step(); optimizer.zero_grad()

A softmax couples all rows of a batch, so that the losses of small batches do not add up to that of
a large one. But it reads vectors alone. So the towers encode the batch chunk by chunk and keep
nothing but vectors; the backward pass encodes each chunk again, with the gradient of its vectors at
hand. That is a second forward pass, and memory for the states of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

Encode = Callable[[Any], Tensor]


class CachedSoftmax(nn.Module):
    """A loss over the vectors of two towers, which encode a batch in chunks.

    Values and gradients are those of the whole batch at once. Dropout draws the same numbers in
    both passes. The towers are not part of the module: its parameters and state are the loss's.

    Args:
        loss: `CrossBatchSoftmax`, or any function of (u `[B, d]`, v `[B, d]`, …).
        user_tower: Maps the inputs of n users to `[n, d]`, or `[n, K, d]`.
        item_tower: Maps the inputs of n items to `[n, d]`.
        chunk_size: Rows that are encoded at once.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        user_tower: Encode,
        item_tower: Encode,
        *,
        chunk_size: int = 64,
    ) -> None:
        super().__init__()
        if not isinstance(chunk_size, int) or chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size!r}")
        self.loss, self.chunk_size = loss, chunk_size
        self._towers = (user_tower, item_tower)  # in a tuple: not registered as parts

    def forward(
        self, user_inputs: Any, item_inputs: Any, *arguments: Any, **options: Any
    ) -> Tensor:
        """The loss of a batch.

        Args:
            user_inputs: A tensor with a row for each user; or tensors with such rows, in lists,
                tuples or dictionaries.
            item_inputs: Likewise for the items.
            *arguments: Passed on to the loss after u and v, such as the item ids.
            **options: Likewise.
        """
        user_tower, item_tower = self._towers
        users = self._encoded(user_tower, user_inputs, "user_inputs")
        items = self._encoded(item_tower, item_inputs, "item_inputs")
        return self.loss(users, items, *arguments, **options)

    def extra_repr(self) -> str:
        """The options, as shown by `print(loss)`."""
        return f"chunk_size={self.chunk_size}"

    def _encoded(self, tower: Encode, inputs: Any, name: str) -> Tensor:
        parts = [
            checkpoint(tower, chunk, use_reentrant=False, preserve_rng_state=True)
            for chunk in self._chunks(inputs, name)
        ]
        return torch.cat(parts)

    def _chunks(self, inputs: Any, name: str) -> Iterator[Any]:
        leaves, shape = tree_flatten(inputs)
        rows = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()}
        if len(rows) != 1 or rows == {0}:
            raise ValueError(
                f"{name} must be tensors with equally many rows, one at least, got {sorted(rows)}"
            )
        for first in range(0, rows.pop(), self.chunk_size):
            part = slice(first, first + self.chunk_size)
            chunk = [
                leaf[part] if isinstance(leaf, Tensor) and leaf.dim() else leaf for leaf in leaves
            ]
            yield tree_unflatten(chunk, shape)
