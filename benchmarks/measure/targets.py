"""Targets, as ratios between rows of one run; they are shown, never asserted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from measure.shape import MODELS, SAMPLERS

FLOOR_TARGETS = {
    (model, sampler): 3.0 if model != "youtube_dnn" else (2.5 if sampler == "in_batch" else 1.7)
    for model, sampler in product(MODELS, SAMPLERS)
}


@dataclass(frozen=True, slots=True)
class Target:
    """The ratio or difference of two rows should be at least, or at most, a value.

    Attributes:
        above: Label of the row above the line.
        below: Label of the row below it.
        at_least: The value to reach, or None.
        at_most: The value not to exceed, or None.
        clock: `"cpu"` or `"wall"`.
        unit: `"×"` for the ratio of the two, `"ms"` for their difference.
        otherwise: What is said where the value is not reached.
    """

    above: str
    below: str
    at_least: float | None = None
    at_most: float | None = None
    clock: str = "cpu"
    unit: str = "×"
    otherwise: str = "missed"

    def met(self, value: float) -> bool:
        """Whether a measured value is good enough."""
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most


TARGETS = (
    Target("TFRS, Adagrad", "youtube_dnn in_batch", at_least=4),
    Target("TFRS, Adagrad", "youtube_dnn in_batch, Adagrad"),
    Target("plain PyTorch, SparseAdam", "youtube_dnn in_batch", at_least=4),
    Target("TFRS, Adam", "youtube_dnn in_batch"),
    Target("plain PyTorch, Adam", "youtube_dnn in_batch"),
    Target("torch-rechub DSSM, in-batch", "youtube_dnn in_batch", at_least=150),
    Target("pytorch-metric-learning CrossBatchMemory", "youtube_dnn cross_batch", at_least=300),
    Target("ComiRec's step, uniform", "youtube_dnn uniform"),
    Target("plain PyTorch, Adam, uniform", "youtube_dnn uniform", at_least=35),
    Target("RecBole GRU4Rec, BPR", "gru4rec in_batch", at_least=50),
    Target("RecBole GRU4Rec, all items", "gru4rec uniform"),
    Target("torch-rechub MIND, 127 negatives", "mind in_batch", at_least=150),
    Target("torch-rechub MIND, 1280 negatives", "mind uniform"),
    Target("youtube_dnn cross_batch", "youtube_dnn uniform", at_most=0.55),
    Target("youtube_dnn cross_batch", "youtube_dnn in_batch", at_most=1.8, unit="ms"),
    *(
        Target(f"{model} {sampler}, dense Adam", f"{model} {sampler}", at_most=1.5)
        for model, sampler in product(MODELS, SAMPLERS)
    ),
    *(
        Target(
            f"{model} {sampler}",
            f"{model} {sampler}, 2 threads",
            at_least=1.4,
            clock="wall",
            otherwise="training takes one",
        )
        for model, sampler in product(MODELS, SAMPLERS)
    ),
)
