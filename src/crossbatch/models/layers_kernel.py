"""Linear layers and ReLUs compiled by numba, one call each way. Arrays are float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from crossbatch.kernels.products import product, product_t, t_product

if TYPE_CHECKING:
    Array = np.ndarray
    Arrays = tuple[np.ndarray, ...]


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def forward(x: Array, weights: Arrays, biases: Arrays, outputs: Arrays, last_relu: bool) -> None:
    """Fill the outputs `[n, out_i]` of all layers.

    Args:
        x: `[n, in]`.
        weights: `[out_i, in_i]` of each layer.
        biases: `[out_i]` of each layer.
        outputs: Written, after the ReLU where there is one.
        last_relu: Whether the last layer has a ReLU, as all others have.
    """
    for i in range(len(weights)):
        y, bias = outputs[i], biases[i]
        product_t(x, weights[i], y, 0)
        relu = last_relu or i + 1 < len(weights)
        for n in range(y.shape[0]):
            row = y[n]
            if relu:
                for k in range(row.shape[0]):
                    row[k] = _positive(row[k] + bias[k])
            else:
                for k in range(row.shape[0]):
                    row[k] += bias[k]
        x = y


@njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
def backward(
    grad: Array,
    x: Array,
    weights: Arrays,
    outputs: Arrays,
    last_relu: bool,
    keep: float,
    grad_weights: Arrays,
    grad_biases: Arrays,
    grad_x: Array,
) -> None:
    """Fill the gradients of the parameters and of the input.

    Args:
        grad: `[n, out]` gradient of the last output.
        x: As in `forward`.
        weights: As in `forward`.
        outputs: What `forward` filled.
        last_relu: As in `forward`.
        keep: Factor of what the gradients of the parameters held, 0 or 1.
        grad_weights: Of each layer, written.
        grad_biases: Of each layer, written.
        grad_x: `[n, in]`, written; or without rows where nobody asks for it.
    """
    if last_relu:
        grad = grad.copy()
        _through_relu(grad, outputs[len(weights) - 1])
    for i in range(len(weights) - 1, -1, -1):
        source = x if i == 0 else outputs[i - 1]
        t_product(grad, source, grad_weights[i], keep)
        if keep == 0:
            grad_biases[i][:] = 0
        _add_rows(grad, grad_biases[i])
        if i > 0:
            below = np.empty_like(source)
            product(grad, weights[i], below, 0)
            _through_relu(below, source)
            grad = below
        elif grad_x.shape[0] > 0:
            product(grad, weights[0], grad_x, 0)


@njit(inline="always", cache=True, error_model="numpy", nogil=True)
def _positive(value: np.float32) -> np.float32:
    # NaN stays NaN, as in torch: whoever watches the loss must see it.
    return np.float32(0) if value < 0 else value


@njit(cache=True, error_model="numpy", nogil=True)
def _through_relu(grad: Array, output: Array) -> None:
    """Gradient `[n, k]` of what went into a ReLU, in place."""
    for n in range(grad.shape[0]):
        row, passed = grad[n], output[n]
        for k in range(row.shape[0]):
            row[k] = np.float32(0) if passed[k] <= 0 else row[k]


@njit(cache=True, error_model="numpy", nogil=True)
def _add_rows(rows: Array, total: Array) -> None:
    """Add rows `[n, k]` to a sum `[k]`."""
    for n in range(rows.shape[0]):
        row = rows[n]
        for k in range(row.shape[0]):
            total[k] += row[k]
