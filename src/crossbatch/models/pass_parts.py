"""What towers with a way back of their own are made of: see `passes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from crossbatch import kernels

from .embedding import EmbeddingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .dense import MLP
    from .embedding import RowKeeper

    Array = np.ndarray

NOTHING = np.empty(0, dtype=np.float32)
NO_ROWS = np.empty((0, 0), dtype=np.float32)


class Ending:
    """The dense part of a tower: layers, then vectors of length 1 if asked.

    Args:
        layers: Or None for none.
        normalize: As in `TwoTower`.
        to_input: Whether the way back goes on to the input; what is fixed needs no gradient.
    """

    def __init__(
        self, layers: Sequence[nn.Module] | MLP | None, normalize: bool, *, to_input: bool = True
    ) -> None:
        from . import layers_kernel, rows_kernel

        self.normalize, self.to_input = normalize, to_input
        linear = [layer for layer in layers or () if isinstance(layer, nn.Linear)]
        self.last_relu = layers is not None and not isinstance(layers[-1], nn.Linear)
        parameters = [*(layer.weight for layer in linear), *(layer.bias for layer in linear)]
        self.arrays, self.gradients = Arrays(parameters), Gradients(parameters)
        self.widths = [layer.out_features for layer in linear]
        self._layers, self._rows = layers_kernel, rows_kernel

    def __call__(self, x: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Vectors `[n, d]` of `x` `[n, in]`, and the way back to the gradient of `x`."""
        n, arrays = len(x), self.arrays()
        weights, biases = arrays[: len(self.widths)], arrays[len(self.widths) :]
        outputs = tuple([np.empty((n, width), dtype=np.float32) for width in self.widths])
        if outputs:
            self._layers.forward(x, weights, biases, outputs, self.last_relu)
        vectors = outputs[-1] if outputs else x
        directions, lengths = vectors, NOTHING
        if self.normalize:
            directions, lengths = np.empty_like(vectors), np.empty(n, dtype=np.float32)
            self._rows.unit(vectors, directions, lengths)

        def backward(gradient: Array) -> Array:
            if self.normalize:
                self._rows.unit_backward(gradient, directions, lengths, gradient)
            return self._through_layers(gradient, x, weights, outputs) if outputs else gradient

        return directions, backward

    def _through_layers(
        self, gradient: Array, x: Array, weights: tuple[Array, ...], outputs: tuple[Array, ...]
    ) -> Array:
        of_x = np.empty_like(x) if self.to_input else NO_ROWS

        def compute(keep: float, *arrays: Array) -> None:
            of_weights, of_biases = arrays[: len(weights)], arrays[len(weights) :]
            self._layers.backward(
                gradient, x, weights, outputs, self.last_relu, keep, of_weights, of_biases, of_x
            )

        self.gradients.add(compute)
        return of_x


class Gradients:
    """Gradients in arrays of their own; `.grad` of the parameters points there after a way back.

    Args:
        parameters: Those that do not learn are written to as well, and left alone.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.gradients = [torch.zeros_like(parameter) for parameter in parameters]
        self.arrays = Arrays(self.gradients)()

    def write(self, compute: Callable[..., None]) -> None:
        """Let `compute` write to the arrays; what other ways back have left is added to."""
        earlier = [own.clone() for own in self.gradients] if self._in_use else []
        compute(*self.arrays)
        for own, before in zip(self.gradients, earlier, strict=False):
            own += before
        self._hand_over()

    def add(self, compute: Callable[..., None]) -> None:
        """As `write`, by a `compute` that adds to its first argument times what it finds."""
        compute(1.0 if self._in_use else 0.0, *self.arrays)
        self._hand_over()

    @property
    def _in_use(self) -> bool:
        """Whether this is not the first way back since the last step."""
        return self.parameters[0].grad is self.gradients[0]

    def _hand_over(self) -> None:
        if self._in_use:
            return
        for parameter, own in zip(self.parameters, self.gradients, strict=True):
            if parameter.grad is not None:  # of autograd: a part of another tower too
                parameter.grad += own
            elif parameter.requires_grad:
                parameter.grad = own


class Arrays:
    """Tensors as arrays over the same memory, made anew whenever they were given other memory.

    Args:
        tensors: Without gaps if the arrays are to be flat.
        flat: Whether the arrays have one dimension.
    """

    def __init__(self, tensors: Sequence[Tensor], *, flat: bool = False) -> None:
        self._tensors, self._flat = tensors, flat
        self._addresses: list[int] = []
        self._arrays: tuple[Array, ...] = ()

    def __call__(self) -> tuple[Array, ...]:
        """The arrays."""
        addresses = [tensor.data_ptr() for tensor in self._tensors]
        if addresses != self._addresses:
            tensors = [tensor.detach() for tensor in self._tensors]
            self._arrays = tuple((t.view(-1) if self._flat else t).numpy() for t in tensors)
            self._addresses = addresses
        return self._arrays


def trainable(module: nn.Module) -> bool:
    """Whether all weights are float32 on a CPU and learn, tables by rows, and nobody listens in."""
    tables = [part for part in module.modules() if isinstance(part, EmbeddingTable)]
    kept = all(table.keeper is not None for table in tables)
    plain = all(
        p.requires_grad and p.device.type == "cpu" and p.dtype == torch.float32
        for p in module.parameters()
    )
    untouched = all(_is_untouched(part) for part in module.modules())
    return kept and plain and untouched and kernels.available()


def _is_untouched(module: nn.Module) -> bool:
    """Whether a module runs as its class says: no hooks, no forward of its own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return not any(hooks) and "forward" not in vars(module)


def keeper_of(table: EmbeddingTable) -> RowKeeper:
    """Who updates the rows of a table that is `trainable`."""
    assert table.keeper is not None
    return table.keeper
