"""YouTube DNN user tower: a mean of the history, then a dense layer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .history import AGES, History
from .layers import check_choice, identity_layer, input_width, mlp

POOLINGS = ("mean", "recency")
DECAY = 0.15  # by which the log-weight of an item falls with each newer one, at the start


class YouTubeDNN(nn.Module):
    """Mean of the real history vectors, then one linear layer with bias (the reading of ComiRec).

    Args:
        dim: Width d.
        input_dim: Width of the history's vectors; d unless given.
        hidden: Widths of ReLU layers before the last one, as in the original paper.
        relu: Whether the last layer has a ReLU too, as in the original paper. User vectors are
            then non-negative.
        pooling: `"mean"`, in which all items count alike, as in the paper; or `"recency"`, with a
            learned weight of each age, so that a longer history does no harm. The weights begin
            falling with age, and a single layer as the identity.
    """

    def __init__(
        self,
        dim: int,
        *,
        input_dim: int | None = None,
        hidden: Sequence[int] = (),
        relu: bool = False,
        pooling: str = "mean",
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        self.dim, self.input_dim = dim, input_width(input_dim, dim)
        self.layers = mlp(self.input_dim, hidden, dim, relu=relu)
        self.begins_as_identity = pooling == "recency" and not hidden
        self.log_weights: nn.Parameter | None = None
        if pooling == "recency":
            self.log_weights = nn.Parameter(-DECAY * torch.arange(AGES))  # of each age
            if self.begins_as_identity:
                self.layers[0] = identity_layer(self.input_dim, dim)

    def forward(self, history: History) -> Tensor:
        """User vectors `[B, 1, d]`."""
        weights = self.log_weights
        pooled = history.mean() if weights is None else history.recency_mean(weights)
        vectors: Tensor = self.layers(pooled)
        return vectors.unsqueeze(1)
