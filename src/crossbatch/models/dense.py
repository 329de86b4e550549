"""Dense layers as TensorFlow initialises them: Glorot-uniform kernels, zero biases."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .fused_layers import FusedLayers


def dense_layer(in_features: int, out_features: int) -> nn.Linear:
    """A linear layer with weights in ±sqrt(6 / (in + out)) and biases of zero."""
    layer = nn.Linear(in_features, out_features)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Sequential):
    """Linear layers with ReLUs between them, and maybe a last one: `[*, in] -> [*, out]`.

    In training all of it is one node of autograd's graph: at a batch of 128 a node for each layer
    adds about as much as the matrix products cost.

    Args:
        layers: `nn.Linear`, with a bias, and `nn.ReLU` in turn.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name in nn.Sequential)
        """Vectors `[*, out]` of vectors `[*, in]`."""
        rewritten = torch.compiler.is_compiling() or torch.is_autocast_enabled(input.device.type)
        if rewritten or not torch.is_grad_enabled():
            vectors: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return vectors
        # By way of the dictionaries: `parameters()` takes as long as a layer.
        layers = self._modules.values()
        found = [tensor for layer in layers for tensor in layer._parameters.values()]
        parameters = [tensor for tensor in found if tensor is not None]
        return FusedLayers.run(input, parameters, last_relu=len(layers) % 2 == 0)


def mlp(in_features: int, hidden: Sequence[int], out_features: int, *, relu: bool = False) -> MLP:
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
    return MLP(*layers, nn.ReLU()) if relu else MLP(*layers)
