"""`TextEncoder`: vectors of items by the token ids of their text, each distinct item once.

encoder = TextEncoder(inputs.item_features["title"], Transformer(8192, 128))
vectors = encoder(item_ids)                     # [N, 128]
with encoder.once():                            # a batch: what was encoded is not encoded again
    positives, history = encoder(item_ids), encoder(history_ids)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .features import FeatureTable
from .layers import check_at_least_one, check_choice, check_share
from .sasrec import Block

POOLINGS = ("mean", "cls")
CHUNK = 256  # items encoded at once, of about the same length: little of them is padding


class TextEncoder(nn.Module):
    """Token ids of items, through a module that gives a state for each token, pooled.

    Args:
        table: Token ids of the items.
        states: Maps token ids `[n, L]` and a mask `[n, L]` to states `[n, L, dim]`; its attribute
            `dim` says how wide they are, `max_tokens` how many tokens it takes.
        pooling: `"mean"` of the tokens' states, or the state of the first one (`"cls"`).
        frozen: Whether the weights never change. Then an item is encoded once and its vector kept:
            `[rows of the table, dim]` float32 in memory.

    Attributes:
        dim: Width of the vectors. An item without text has zeros.
    """

    def __init__(
        self, table: FeatureTable, states: Any, *, pooling: str = "mean", frozen: bool = False
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        self.table, self.states, self.dim = table, states, int(states.dim)
        self.pooling, self.frozen = pooling, frozen
        self._batch: tuple[Tensor, Tensor] | None = None  # ids [n] ascending and vectors [n, dim]
        self._kept: tuple[Tensor, Tensor] | None = None  # which rows are known, and all vectors
        if frozen:
            self.requires_grad_(requires_grad=False)
            # Weights that are loaded are other weights.
            self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]
        self.train()

    def forward(self, item_ids: Tensor) -> Tensor:
        """Vectors `[N, dim]` of items `[N]`."""
        distinct, where = item_ids.unique(return_inverse=True)
        return self._distinct(distinct).index_select(0, where)

    @contextmanager
    def once(self) -> Iterator[None]:
        """Remember what is encoded, with its graph, until the context ends."""
        nothing = torch.zeros(0)
        self._batch = (nothing.long(), nothing)
        try:
            yield
        finally:
            self._batch = None

    def forget(self) -> None:
        """Drop the vectors that a frozen encoder keeps."""
        self._kept = None

    def train(self, mode: bool = True) -> "TextEncoder":
        """Set the mode; a frozen encoder is always in evaluation mode, without dropout."""
        return super().train(mode and not self.frozen)

    def _distinct(self, ids: Tensor) -> Tensor:
        """Vectors `[n, dim]` of ascending ids `[n]`."""
        if self._batch is None:
            return self._vectors(ids)
        known, vectors = self._batch
        new = ids[~torch.isin(ids, known.to(ids.device))]
        if len(new):
            found = self._vectors(new)
            order = torch.cat([known.to(ids.device), new]).sort()
            if len(known):
                found = torch.cat([vectors, found]).index_select(0, order.indices)
            known, vectors = order.values, found
            self._batch = known, vectors
        return vectors.index_select(0, torch.searchsorted(known, ids))

    def _vectors(self, ids: Tensor) -> Tensor:
        if not self.frozen:
            return self._encoded(ids)
        if self._kept is None or self._kept[1].device != ids.device:
            known = torch.zeros(len(self.table), dtype=torch.bool, device=ids.device)
            self._kept = known, torch.zeros(len(self.table), self.dim, device=ids.device)
        known, vectors = self._kept
        missing = ids[~known[ids]]
        if len(missing):
            # In full precision whatever a training step uses: evaluation reads the same vectors.
            with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
                vectors[missing] = self._encoded(missing).float()
            known[missing] = True
        return vectors.index_select(0, ids)

    def _encoded(self, ids: Tensor) -> Tensor:
        lengths = self.table.lengths(ids)
        order = lengths.argsort(descending=True, stable=True)
        real = int((lengths > 0).sum())
        parts = [self._pooled(ids[chunk]) for chunk in order[:real].split(CHUNK)] if real else []
        empty = torch.zeros(len(ids) - real, self.dim, device=ids.device)
        vectors = torch.cat([*parts, empty.to(parts[0].dtype) if parts else empty])
        return vectors.index_select(0, order.argsort())

    def _pooled(self, ids: Tensor) -> Tensor:
        tokens, mask = self.table.padded(ids, self.states.max_tokens)
        states: Tensor = self.states(tokens, mask)  # [n, L, dim]
        if self.pooling == "cls":
            return states[:, 0]
        weights = mask.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(dim=1) / weights.sum(dim=1)


def _forget(encoder: TextEncoder, _: object) -> None:
    encoder.forget()


class Transformer(nn.Module):
    """A small transformer encoder over token ids, from scratch; positions are learned.

    Args:
        num_tokens: Token ids are below it.
        dim: Width of the states.
        layers: Blocks of self-attention.
        heads: Of each block.
        dropout: Share of the states that are dropped in training.
        max_tokens: Tokens of a text that are read, the first ones.
        checkpointing: Whether the backward pass computes the blocks again instead of keeping all
            their states: less memory, a third more time.
    """

    def __init__(
        self,
        num_tokens: int,
        dim: int,
        *,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        max_tokens: int = 64,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        check_at_least_one(layers=layers, heads=heads, width=dim, max_tokens=max_tokens)
        check_share("dropout", dropout)
        if dim % heads:
            raise ValueError(f"heads must divide width, got heads={heads} and width={dim}")
        self.dim, self.max_tokens, self.checkpointing = dim, max_tokens, checkpointing
        # Plain dense weights: checkpointing reads them twice, which row optimisers must not see.
        self.tokens = nn.Embedding(num_tokens, dim)
        self.positions = nn.Embedding(max_tokens, dim)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.last_norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """States `[n, L, dim]` of token ids `[n, L]`, of which those in `mask` are real."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.dropout(self.norm(self.tokens(tokens) + self.positions(places)))
        visible = mask[:, None, None, :]
        again = self.checkpointing and self.training and torch.is_grad_enabled()
        for each in self.blocks:
            block = cast("Block", each).padded
            if again:
                states = checkpoint(block, states, states, visible, use_reentrant=False)
            else:
                states = block(states, states, visible)
        vectors: Tensor = self.last_norm(states)
        return vectors
