"""Dense layers as TensorFlow initialises them: Glorot-uniform kernels, zero biases."""

from collections.abc import Sequence

from torch import Tensor, nn

from crossbatch.kernels.products import linear


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
        layers += [dense_layer(in_features, width), nn.ReLU()]
        in_features = width
    layers.append(dense_layer(in_features, out_features))
    return nn.Sequential(*layers, nn.ReLU()) if relu else nn.Sequential(*layers)
