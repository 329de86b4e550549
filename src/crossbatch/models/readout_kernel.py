"""The readouts compiled by numba, the way back included. Arrays are float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    Array = np.ndarray

LARGEST = 80.0  # of |s|^power: float32 ends at e^88


@njit(cache=True, error_model="numpy", nogil=True)
def best(interests: Array, target: Array, users: Array) -> Array:
    """Copy the interest `[B, K, d]` that scores its target `[B, d]` highest to `users` `[B, d]`.

    Returns:
        Their places b K + k `[B]`.
    """
    B, K, d = interests.shape
    places = np.empty(B, dtype=np.int64)
    for b in range(B):
        found, highest = 0, _dot(interests[b, 0], target[b])
        for k in range(1, K):
            score = _dot(interests[b, k], target[b])
            if score > highest:
                found, highest = k, score
        places[b] = b * K + found
        for j in range(d):
            users[b, j] = interests[b, found, j]
    return places


@njit(cache=True, error_model="numpy", nogil=True)
def mixed(interests: Array, target: Array, power: float, users: Array) -> tuple[Array, Array]:
    """Write mixtures `[B, d]` of interests with weights softmax(sign(s)·|s|^power).

    Returns:
        The weights `[B, K]`, and the slopes of the logits over the scores `[B, K]`.
    """
    B, K, d = interests.shape
    weights = np.empty((B, K), dtype=np.float32)
    slopes = np.empty((B, K), dtype=np.float32)
    for b in range(B):
        peak = -np.inf
        for k in range(K):
            score = _dot(interests[b, k], target[b])
            weights[b, k], slopes[b, k] = score, 1
            if power != 1:
                size = max(float(abs(score)), 1e-12)
                exponent = power * math.log(size)
                logit = math.exp(min(exponent, LARGEST))
                weights[b, k] = np.sign(score) * logit
                free = exponent <= LARGEST and abs(score) >= 1e-12
                slopes[b, k] = power * logit / size if free else 0.0
            peak = max(peak, weights[b, k])
        total = 0.0
        for k in range(K):
            weights[b, k] = math.exp(weights[b, k] - peak)
            total += weights[b, k]
        for j in range(d):
            users[b, j] = 0
        for k in range(K):
            weights[b, k] /= total
            for j in range(d):
                users[b, j] += weights[b, k] * interests[b, k, j]
    return weights, slopes


@njit(cache=True, error_model="numpy", nogil=True)
def back_from_mixed(
    grad: Array,
    interests: Array,
    target: Array,
    weights: Array,
    slopes: Array,
    grad_interests: Array,
    grad_target: Array,
) -> None:
    """Write the gradients of interests `[B, K, d]` and targets `[B, d]`, from `grad` `[B, d]`."""
    B, K, d = interests.shape
    pull = np.empty(K, dtype=np.float32)
    for b in range(B):
        mean = np.float32(0)
        for k in range(K):
            pull[k] = _dot(grad[b], interests[b, k])
            mean += weights[b, k] * pull[k]
        for j in range(d):
            grad_target[b, j] = 0
        for k in range(K):
            weight = weights[b, k]
            of_score = weight * (pull[k] - mean) * slopes[b, k]
            for j in range(d):
                grad_interests[b, k, j] = weight * grad[b, j] + of_score * target[b, j]
                grad_target[b, j] += of_score * interests[b, k, j]


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True)
def _dot(a: Array, b: Array) -> np.float32:
    total = np.float32(0)
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total
