"""Bootstrap confidence intervals over users.

    mean_interval(recall_per_user)                  # of one model
    paired_difference(recall_a, recall_b)           # of two models on the same users

Resampling U users with replacement and averaging depends only on how often each *distinct* value is
drawn, which is one multinomial draw over the distinct values. The law is that of the textbook
bootstrap and the cost does not grow with the number of users.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Multinomial counts held at once (64 MB).
COUNTS = 1 << 23


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its percentile-bootstrap interval; NaN without users."""

    value: float
    low: float
    high: float


def mean_interval(
    values: npt.ArrayLike, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Return the mean over users and its interval; users with NaN (undefined) are left out."""
    sample = _columns(values)
    means = resampled_means(sample, resamples=resamples, seed=seed)
    return _interval(_mean(sample)[0], means[:, 0], level)


def paired_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    relative: bool = False,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return mean(a) − mean(b), or mean(a) / mean(b) − 1 if `relative`, with its interval.

    Users are drawn in pairs: what makes a user hard for both models cancels. An interval that holds
    0 does not tell the models apart. Users undefined (NaN) under either model are left out.

    Args:
        a: `[U]` values of the model in question.
        b: `[U]` values of the reference, same users in the same order.
        relative: Gain as a share of the reference instead of an absolute difference.
        level: Coverage of the interval.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.
    """
    sample = _columns(a, b)
    means = resampled_means(sample, resamples=resamples, seed=seed)
    return _interval(_contrast(_mean(sample)[None], relative)[0], _contrast(means, relative), level)


def resampled_means(sample: Floats, *, resamples: int, seed: int) -> Floats:
    """Return `[resamples, m]` means of users drawn with replacement from `[U, m]` rows."""
    U, m = sample.shape
    means = np.full((resamples, m), np.nan)
    if U == 0:
        return means
    distinct, counts = np.unique(sample, axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    step = max(1, COUNTS // len(distinct))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = rng.multinomial(U, counts / U, size=size)
        means[start : start + size] = drawn @ distinct / U
    return means


def _columns(*values: npt.ArrayLike) -> Floats:
    """Stack per-user values to `[U, m]` rows, undefined users dropped."""
    columns = [np.asarray(value, dtype=np.float64) for value in values]
    if any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
        shapes = " and ".join(str(list(column.shape)) for column in columns)
        raise ValueError(f"values must be [U], one per user and the same users, got {shapes}")
    sample = np.stack(columns, axis=1)
    return sample[~np.isnan(sample).any(axis=1)]


def _mean(sample: Floats) -> Floats:
    return sample.mean(axis=0) if len(sample) else np.full(sample.shape[1], np.nan)


def _contrast(means: Floats, relative: bool) -> Floats:
    """`[R, 2]` means of (a, b) → `[R]`; a gain over a reference of 0 is undefined."""
    a, b = means[:, 0], means[:, 1]
    if not relative:
        return np.asarray(a - b)
    return np.divide(a, b, out=np.full_like(a, np.nan), where=b != 0) - 1.0


def _interval(value: float, resampled: Floats, level: float) -> Interval:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if np.isnan(resampled).any():
        return Interval(float(value), float("nan"), float("nan"))
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))
