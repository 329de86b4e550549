"""What towers are made of: dense layers, readouts of several interests, checks of their arguments.

Dense layers start as TensorFlow initialises them: Glorot-uniform kernels, zero biases.
A label-aware readout says which of a user's K interests answers for the item at hand:

    u = READOUTS["hard"](interests, target, power=1.0)      # [B, d]
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from crossbatch.kernels.products import linear
from crossbatch.queries import best_interest


def check_choice(argument: str, value: str, choices: Iterable[str]) -> None:
    """Raise `ValueError` unless `value` is one of `choices`."""
    allowed = list(choices)
    if value not in allowed:
        raise ValueError(f"{argument} must be one of {', '.join(allowed)}, got {value!r}")


def check_at_least_one(**sizes: int) -> None:
    """Raise `ValueError` for the first size below 1."""
    for argument, value in sizes.items():
        if value < 1:
            raise ValueError(f"{argument} must be at least 1, got {value}")


def check_share(argument: str, value: float) -> None:
    """Raise `ValueError` unless `value` is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{argument} must be in [0, 1), got {value}")


def input_width(input_dim: int | None, dim: int) -> int:
    """Width of the vectors that a user tower reads: `input_dim`, or `dim` where that is None."""
    width = dim if input_dim is None else input_dim
    check_at_least_one(input_dim=width)
    return width


class Dense(nn.Linear):
    """`nn.Linear` with a bias, multiplied by the faster of torch's two libraries."""

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102 (as there)
        return linear(x, self.weight, self.bias)


def dense_layer(in_features: int, out_features: int) -> Dense:
    """A linear layer with weights in ±sqrt(6 / (in + out)) and biases of zero."""
    layer = Dense(in_features, out_features)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def identity_layer(in_features: int, out_features: int) -> Dense:
    """A linear layer that begins by passing its input through, cut or filled up with zeros."""
    layer = Dense(in_features, out_features)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(
    in_features: int, hidden: Sequence[int], out_features: int, *, relu: bool = False
) -> nn.Sequential:
    """Hidden layers with ReLU, then a linear one, with a ReLU too if asked: `[*, in] -> [*, out]`.

    Without hidden layers this is one linear map.
    """
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden must hold layer widths of at least 1, got {list(hidden)}")
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [dense_layer(in_features, width), nn.ReLU(inplace=True)]
        in_features = width
    layers.append(dense_layer(in_features, out_features))
    return nn.Sequential(*layers, nn.ReLU(inplace=True)) if relu else nn.Sequential(*layers)


def hard_readout(interests: Tensor, target: Tensor, power: float = 1.0) -> Tensor:
    """The interest with the largest score for the target.

    Raising scores to a power before the choice, as some code does, would pick the most negative
    score for an even one and overflow for a large one; the order is all that matters here.

    Args:
        interests: `[B, K, d]`.
        target: `[B, d]`.
        power: Of no effect.

    Returns:
        `[B, d]`.
    """
    del power
    return best_interest(interests, target)


def soft_readout(interests: Tensor, target: Tensor, power: float = 1.0) -> Tensor:
    """Attention over the interests with weights softmax(sign(s)·|s|^power), s the target's scores.

    Copies of the first interest (which stand in for interests a user does not have) count once.

    Args:
        interests: `[B, K, d]`.
        target: `[B, d]`.
        power: Sharpness; the larger, the closer to the hard readout.

    Returns:
        `[B, d]`.
    """
    scores = _scores(interests, target)
    # The cap keeps |s|^100 finite; float32 ends at e^88.
    size = (power * scores.abs().clamp_min(1e-12).log()).clamp_max(80.0).exp()
    logits = scores if power == 1 else scores.sign() * size
    copies = (interests[:, 1:] == interests[:, :1]).all(dim=-1)  # [B, K-1]
    logits = torch.cat([logits[:, :1], logits[:, 1:].masked_fill(copies, -torch.inf)], dim=1)
    return torch.bmm(logits.softmax(dim=1).unsqueeze(1), interests).squeeze(1)


def _scores(interests: Tensor, target: Tensor) -> Tensor:
    return torch.bmm(interests, target.unsqueeze(2).to(interests.dtype)).squeeze(2)  # [B, K]


READOUTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "hard": hard_readout,
    "soft": soft_readout,
}
