"""Bootstrap confidence intervals over users, and over seeds where several runs are averaged.

    mean_interval(recall_per_user)                  # of one model
    paired_difference(recall_a, recall_b)           # of two models on the same users

    means = resampled_means(np.stack([in_batch, cross_batch], axis=1))   # [R, 2]
    low, high = gain_interval(means[:, 1:], means[:, :1])

Each resample draws the users once, with replacement, for all columns together: what two models owe
to the same easy or hard users cancels in their difference. Needs NumPy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.95  # coverage of every interval
CHUNK = 32  # resamples whose user counts are held at a time: 32 × 60,000 users = 15 MB


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its percentile-bootstrap interval; NaN without users."""

    value: float
    low: float
    high: float


def resampled_means(values: npt.ArrayLike, *, resamples: int = 2000, seed: int = 0) -> Floats:
    """Means of every column over users drawn with replacement.

    Args:
        values: `[U, C]` per-user metrics; row u is the same user in every column. NaN is a user for
            whom the metric is undefined, and is left out of that column's mean.
        resamples: Number R of draws.
        seed: Seed of the draws.

    Returns:
        `[R, C]`; in each row all columns were averaged over the same drawn users.
    """
    columns = np.asarray(values, dtype=np.float64)
    U, C = columns.shape
    means = np.full((resamples, C), np.nan)
    if U == 0:
        return means
    undefined = np.isnan(columns)
    columns = np.where(undefined, 0.0, columns)
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, CHUNK):
        rows = min(CHUNK, resamples - start)
        counts = np.empty((rows, U))  # how often each user was drawn
        for row in range(rows):
            counts[row] = np.bincount(rng.integers(0, U, U), minlength=U)
        sizes = U - counts @ undefined if undefined.any() else np.full((rows, C), float(U))
        part = means[start : start + rows]
        np.divide(counts @ columns, sizes, out=part, where=sizes > 0)
    return means


def mean_interval(values: npt.ArrayLike, *, resamples: int = 1000, seed: int = 0) -> Interval:
    """Return the mean over users and its interval; users with NaN (undefined) are left out."""
    return mean_intervals(_columns(values), resamples=resamples, seed=seed)[0]


def mean_intervals(values: Floats, *, resamples: int = 1000, seed: int = 0) -> list[Interval]:
    """Return `mean_interval` of every column of `[U, C]` values, from one draw of users."""
    means = resampled_means(values, resamples=resamples, seed=seed)
    found = []
    for column, drawn in zip(values.T, means.T, strict=True):
        found.append(_interval(mean_of_defined(column), drawn[~np.isnan(drawn)]))
    return found


def mean_of_defined(values: Floats) -> float:
    """Return the mean of `[U]` values but NaN; NaN, without a warning, if there is no other."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def paired_difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    relative: bool = False,
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
        resamples: Bootstrap resamples.
        seed: Seed of the resampling.
    """
    sample = _columns(a, b)
    sample = sample[~np.isnan(sample).any(axis=1)]
    mean = sample.mean(axis=0, keepdims=True) if len(sample) else np.full((1, 2), np.nan)
    means = resampled_means(sample, resamples=resamples, seed=seed)
    value, drawn = (_contrast(each, relative) for each in (mean, means))
    return _interval(float(value[0]), drawn)


def gain_interval(ours: Floats, reference: Floats) -> tuple[float, float] | None:
    """Percentile interval of the relative gain mean(ours) / mean(reference) − 1, or None.

    `ours` and `reference` are `[R, S]` resampled means of the same resamples, one column per seed.
    Seeds are drawn again too, in pairs, so that the interval also knows how much a run depends on
    its seed. None: the reference may be zero, so that no ratio exists.
    """
    R, S = ours.shape
    drawn = np.random.default_rng(0).integers(0, S, (R, S))  # S = 1 always draws column 0
    numerator = np.take_along_axis(ours, drawn, axis=1).mean(axis=1)
    denominator = np.take_along_axis(reference, drawn, axis=1).mean(axis=1)
    if not (denominator > 0).all():
        return None
    interval = _interval(float("nan"), numerator / denominator - 1)
    return interval.low, interval.high


def _columns(*values: npt.ArrayLike) -> Floats:
    """Stack per-user values `[U]` to `[U, m]` rows."""
    columns = [np.asarray(value, dtype=np.float64) for value in values]
    if any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
        shapes = " and ".join(str(list(column.shape)) for column in columns)
        raise ValueError(f"values must be [U], one per user and the same users, got {shapes}")
    return np.stack(columns, axis=1)


def _contrast(means: Floats, relative: bool) -> Floats:
    """`[R, 2]` means of (a, b) → `[R]`; a gain over a reference of 0 is undefined."""
    a, b = means[:, 0], means[:, 1]
    if not relative:
        return np.asarray(a - b)
    return np.divide(a, b, out=np.full_like(a, np.nan), where=b != 0) - 1.0


def _interval(value: float, resampled: Floats) -> Interval:
    if not len(resampled) or np.isnan(resampled).any():
        return Interval(value, float("nan"), float("nan"))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(value, float(low), float(high))
