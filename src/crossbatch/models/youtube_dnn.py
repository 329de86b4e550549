"""YouTube DNN user tower: the mean of the history, then a dense layer."""

from collections.abc import Sequence

from torch import Tensor, nn

from .checks import input_width
from .dense import mlp
from .history import History


class YouTubeDNN(nn.Module):
    """Mean of the real history vectors, then one linear layer with bias (the reading of ComiRec).

    Args:
        dim: Width d.
        input_dim: Width of the history's vectors; d unless given.
        hidden: Widths of ReLU layers before the last one, as in the original paper.
        relu: Whether the last layer has a ReLU too, as in the original paper. User vectors are
            then non-negative.
    """

    def __init__(
        self,
        dim: int,
        *,
        input_dim: int | None = None,
        hidden: Sequence[int] = (),
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.input_dim = dim, input_width(input_dim, dim)
        self.layers = mlp(self.input_dim, hidden, dim, relu=relu)

    def forward(self, history: History) -> Tensor:
        """User vectors `[B, 1, d]`."""
        vectors: Tensor = self.layers(history.mean())
        return vectors.unsqueeze(1)
