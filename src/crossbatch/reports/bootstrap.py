"""Paired bootstrap: how sure is a gain of one sampler over another?

Every replicate draws the test users once, with replacement, for all runs together: what two runs
owe to the same easy or hard users cancels in their ratio. Where a gain averages several seeds,
the seeds are drawn again too, so the interval also knows how much a run depends on its seed.

    means = resampled_means(np.stack([in_batch, cross_batch], axis=1))   # [R, 2]
    low, high = gain_interval(means[:, 1:], means[:, :1])
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

REPLICATES = 2000
LEVEL = 0.95
CHUNK = 32  # replicates whose user counts are held at a time: 32 × 60,000 users = 15 MB


def resampled_means(
    values: npt.NDArray[np.float32], *, replicates: int = REPLICATES, seed: int = 0
) -> Floats:
    """Means of every column over users drawn with replacement.

    Args:
        values: [U, C] per-user metrics; row u is the same user in every column.
        replicates: number R of draws.
        seed: seed of the draws.

    Returns:
        [R, C]; in each row all columns were averaged over the same drawn users.
    """
    U, C = values.shape
    rng = np.random.default_rng(seed)
    means = np.empty((replicates, C))
    columns = values.astype(np.float64)  # or a mean would depend on what is averaged beside it
    for start in range(0, replicates, CHUNK):
        rows = min(CHUNK, replicates - start)
        counts = np.empty((rows, U))  # how often each user was drawn
        for row in range(rows):
            counts[row] = np.bincount(rng.integers(0, U, U), minlength=U)
        means[start : start + rows] = (counts @ columns) / U
    return means


def gain_interval(
    ours: Floats, reference: Floats, *, level: float = LEVEL, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile interval of the relative gain mean(ours) / mean(reference) − 1.

    Args:
        ours: [R, S] resampled means, one column per seed.
        reference: [R, S] of the same replicates and seeds.
        level: probability covered by the interval.
        seed: seed of the draw of seeds.

    Returns:
        (low, high), or None where the reference may be zero, so that no ratio exists.
    """
    R, S = ours.shape
    drawn = np.random.default_rng(seed).integers(0, S, (R, S))  # S = 1 always draws column 0
    numerator = np.take_along_axis(ours, drawn, axis=1).mean(axis=1)
    denominator = np.take_along_axis(reference, drawn, axis=1).mean(axis=1)
    if not (denominator > 0).all():
        return None
    tail = (1 - level) / 2
    low, high = np.quantile(numerator / denominator - 1, [tail, 1 - tail])
    return float(low), float(high)
