"""SASRec user tower: causal self-attention, read at the last item."""

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossbatch.kernels.attention import attention
from crossbatch.kernels.dropout import dropout, new_seed
from crossbatch.kernels.history_means import ages
from crossbatch.kernels.products import linear

from .embedding import EmbeddingTable
from .history import History
from .layers import Dense, check_at_least_one, check_share, dense_layer, input_width


class Dropout(nn.Dropout):
    """`nn.Dropout` with noise that costs little on a CPU."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 (as there)
        return dropout(x, self.p, new_seed(x.device)) if self.training and self.p else x


class Block(nn.Module):
    """Self-attention over the past, then a two-layer network on each position; both residual."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.network_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query_key_value = nn.ModuleList(dense_layer(dim, dim) for _ in range(3))
        self.mix = dense_layer(dim, dim)
        self.network = nn.Sequential(
            dense_layer(dim, dim),
            nn.ReLU(),
            Dropout(dropout),
            dense_layer(dim, dim),
            Dropout(dropout),
        )

    def forward(self, states: Tensor, stops: Tensor, readers: Tensor | None = None) -> Tensor:
        """What states `[P, d]`, or `readers` `[B, d]`, become after looking at the past.

        Args:
            states: Of the items of all histories, end to end.
            stops: `[B]` where each history ends.
            readers: The last state of each history, where only these are wanted.
        """
        query_of, *key_value_of = self.query_key_value
        normed = self.attention_norm(states)
        queries = None if readers is None else query_of(self.attention_norm(readers))
        items = _side_by_side(normed, self.query_key_value if readers is None else key_value_of)
        rate = self.dropout if self.training else 0.0
        seen = attention(items, stops, self.heads, rate, new_seed(items.device), queries)
        return self._finished(states if readers is None else readers, seen)

    def padded(self, states: Tensor, readers: Tensor, visible: Tensor) -> Tensor:
        """The same of `readers` `[B, R, d]` and `states` `[B, L, d]`, with padding.

        It is for graph export, and for texts, where a token looks at all others. `visible` `[R, L]`
        or `[B, 1, R, L]` is True where a reader may look.
        """
        query_of, key_of, value_of = self.query_key_value
        normed = self.attention_norm(states)
        asking = normed if readers is states else self.attention_norm(readers)
        seen = functional.scaled_dot_product_attention(
            self._split(query_of(asking)),
            self._split(key_of(normed)),
            self._split(value_of(normed)),
            attn_mask=visible,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self._finished(readers, seen.transpose(1, 2).flatten(2))

    def _finished(self, readers: Tensor, seen: Tensor) -> Tensor:
        readers = readers + self.mix(seen)
        result: Tensor = readers + self.network(self.network_norm(readers))
        return result

    def _split(self, vectors: Tensor) -> Tensor:
        B, R, d = vectors.shape
        return vectors.view(B, R, self.heads, d // self.heads).transpose(1, 2)


def _side_by_side(x: Tensor, layers: Iterable[nn.Module]) -> Tensor:
    """Outputs `[P, Σ d]` of linear layers of the same input, in one product."""
    given = [cast("Dense", layer) for layer in layers]
    weights: list[Tensor] = [layer.weight for layer in given]
    return linear(x, torch.cat(weights), torch.cat([layer.bias.view(-1) for layer in given]))


class SASRec(nn.Module):
    """The state of the last real item after `blocks` layers of causal self-attention.

    Args:
        dim: Width d.
        input_dim: Width of the history's vectors, which a linear layer brings to d; d unless given.
        blocks: Attention layers.
        heads: Attention heads; must divide d.
        dropout: On the input, the attention weights and the networks.
        max_length: Number of position vectors, counted back from the last item; items further
            back share the last.

    Deviation: layers normalise their whole input (pre-norm); the original normalises queries only
    and adds the residual after it.
    """

    def __init__(
        self,
        dim: int,
        *,
        input_dim: int | None = None,
        blocks: int = 2,
        heads: int = 1,
        dropout: float = 0.2,
        max_length: int = 50,
    ) -> None:
        super().__init__()
        check_at_least_one(blocks=blocks, heads=heads, max_length=max_length)
        check_share("dropout", dropout)
        if dim % heads:
            raise ValueError(f"heads must divide dim, got heads={heads} and dim={dim}")
        self.dim, self.input_dim = dim, input_width(input_dim, dim)
        self.max_length = max_length
        self.narrow = nn.Identity() if self.input_dim == dim else dense_layer(self.input_dim, dim)
        self.positions = EmbeddingTable(max_length, dim, sparse=False)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)

    def forward(self, history: History) -> Tensor:
        """User vectors `[B, 1, d]`."""
        if torch.compiler.is_exporting():
            return self._padded(*history.padded())
        items, stops = history
        from_end = ages(stops, len(items)).clamp(max=self.max_length - 1)  # [P]
        states: Tensor = self.dropout(self._described(items, from_end))
        for block in self.blocks[:-1]:
            states = block(states, stops)
        # Only the last item is read, so the last block works for it alone.
        empty = (history.lengths == 0).unsqueeze(1)
        last = (
            states.index_select(0, (stops - 1).clamp_min(0))
            if len(states)
            else states.new_zeros(len(stops), self.dim)
        )
        users: Tensor = self.norm(self.blocks[-1](states, stops, last))
        return users.masked_fill(empty, 0.0).unsqueeze(1)

    def _padded(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """The same of histories `[B, L, w]` with mask `[B, L]`: fixed shapes, for graph export."""
        last = mask.sum(dim=1, keepdim=True) - 1  # [B, 1]; -1 for an empty history
        order = torch.arange(vectors.shape[1], device=vectors.device)
        from_end = (last - order).clamp(0, self.max_length - 1)  # [B, L]
        states = self._described(vectors, from_end)
        *earlier, final = (cast("Block", block) for block in self.blocks)
        for block in earlier:
            states = block.padded(states, states, visible=order <= order.unsqueeze(1))
        index = last.clamp_min(0)
        readers = states.gather(1, index.unsqueeze(2).expand(-1, -1, self.dim))  # [B, 1, d]
        readers = final.padded(states, readers, visible=(order <= index)[:, None, None])
        users: Tensor = self.norm(readers)
        return users.masked_fill((last < 0).unsqueeze(2), 0.0)

    def _described(self, items: Tensor, from_end: Tensor) -> Tensor:
        """Items in d dimensions, with the vectors of their positions."""
        described: Tensor = self.narrow(items) * math.sqrt(self.dim) + self.positions(from_end)
        return described
