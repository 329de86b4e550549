"""ComiRec-SA user tower: K interests, each an attention over the history."""

import torch
from torch import Tensor, nn

from .embedding import EmbeddingTable
from .history import History
from .layers import READOUTS, check_at_least_one, check_choice, dense_layer, input_width


class ComiRecSA(nn.Module):
    """Interests A^T H with A = softmax over positions of tanh((H + P) W1) W2.

    Args:
        dim: Width d.
        input_dim: Width of the history's vectors, which a linear layer brings to d; d unless given.
        interests: Number K of interests.
        hidden_size: Width of the attention layer; 4 d unless given.
        positions: Whether position vectors P are added before the attention layer.
        max_length: Number of position vectors; later positions share the last.
        readout: `"hard"` or `"soft"`, as in MIND.
        power: Sharpness of the soft readout.
    """

    def __init__(
        self,
        dim: int,
        *,
        input_dim: int | None = None,
        interests: int = 4,
        hidden_size: int | None = None,
        positions: bool = True,
        max_length: int = 20,
        readout: str = "hard",
        power: float = 1.0,
    ) -> None:
        super().__init__()
        hidden_size = 4 * dim if hidden_size is None else hidden_size
        check_at_least_one(interests=interests, hidden_size=hidden_size, max_length=max_length)
        check_choice("readout", readout, READOUTS)
        self.dim, self.input_dim = dim, input_width(input_dim, dim)
        self.max_length, self.readout, self.power = max_length, readout, power
        self.narrow = nn.Identity() if self.input_dim == dim else dense_layer(self.input_dim, dim)
        self.positions = EmbeddingTable(max_length, dim, sparse=False) if positions else None
        self.attention = nn.Sequential(
            dense_layer(dim, hidden_size), nn.Tanh(), dense_layer(hidden_size, interests)
        )

    def forward(self, history: History) -> Tensor:
        """Interests `[B, K, d]`."""
        vectors, mask = history.padded()
        items = self.narrow(vectors)
        placed = items
        if self.positions is not None:
            order = torch.arange(items.shape[1], device=items.device)
            placed = items + self.positions(order.clamp_max(self.max_length - 1))
        logits = self.attention(placed).transpose(1, 2)  # [B, K, L]
        padding = ~mask.unsqueeze(1)
        # The lowest finite number: a row of -inf would make an empty items NaN.
        weights = logits.masked_fill(padding, torch.finfo(logits.dtype).min).softmax(dim=2)
        weights = weights.masked_fill(padding, 0.0)
        return torch.bmm(weights.to(items.dtype), items)

    def select(self, interests: Tensor, target: Tensor) -> Tensor:
        """The vector `[B, d]` of interests `[B, K, d]` that answers for targets `[B, d]`."""
        return READOUTS[self.readout](interests, target, self.power)
