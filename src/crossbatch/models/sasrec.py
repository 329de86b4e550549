"""SASRec user tower: causal self-attention, read at the last item."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .checks import check_at_least_one, check_share, input_width
from .dense import dense_layer
from .embedding import EmbeddingTable
from .history import History


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
            nn.Dropout(dropout),
            dense_layer(dim, dim),
            nn.Dropout(dropout),
        )

    def forward(self, states: Tensor, readers: Tensor, visible: Tensor) -> Tensor:
        """What `readers` `[B, R, d]` become after looking at `states` `[B, L, d]`.

        `visible` `[R, L]` or `[B, 1, R, L]` is True where a reader may look.
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
        readers = readers + self.mix(seen.transpose(1, 2).flatten(2))
        result: Tensor = readers + self.network(self.network_norm(readers))
        return result

    def _split(self, vectors: Tensor) -> Tensor:
        B, R, d = vectors.shape
        return vectors.view(B, R, self.heads, d // self.heads).transpose(1, 2)


class SASRec(nn.Module):
    """The state of the last real item after `blocks` layers of causal self-attention.

    Padding stands on the right, where causal attention never looks from a real item.

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
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)

    def forward(self, history: History) -> Tensor:
        """User vectors `[B, 1, d]`."""
        vectors, mask = history.padded()
        items = self.narrow(vectors)
        last = mask.sum(dim=1, keepdim=True) - 1  # [B, 1]; -1 for an empty items
        order = torch.arange(items.shape[1], device=items.device)
        from_end = (last - order).clamp(0, self.max_length - 1)  # [B, L]
        states = self.dropout(items * math.sqrt(self.dim) + self.positions(from_end))
        for block in self.blocks[:-1]:
            states = block(states, states, visible=order <= order.unsqueeze(1))
        # Only the last item is read, so the last block works for it alone.
        index = last.clamp_min(0)
        readers = states.gather(1, index.unsqueeze(2).expand(-1, -1, self.dim))  # [B, 1, d]
        readers = self.blocks[-1](states, readers, visible=(order <= index)[:, None, None])
        users: Tensor = self.norm(readers)
        return users.masked_fill((last < 0).unsqueeze(2), 0.0)
