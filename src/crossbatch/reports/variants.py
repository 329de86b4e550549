"""Group runs that differ in nothing but their seed, and name how the groups differ.

Usage:

for variant in group_runs(runs):
    print(variant.label, [run.seed for run in variant.runs])
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crossbatch.files import flat

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from crossbatch.reports.runs import Run

MODEL_NAMES = {"youtube_dnn": "YouTube DNN", "gru4rec": "GRU4Rec", "mind": "MIND"}
SAMPLER_NAMES = {
    "uniform": "Uniform",
    "in_batch": "In-batch",
    "mixed": "Mixed (MNS)",
    "cross_batch": "Cross-batch",
    "auto": "Auto",
}
# CBNS as published and with the repaired item gradient are different methods: never one name.
GRADIENT_NAMES = {"paper": "as published", "balanced": "balanced", "deferred": "deferred"}

REFERENCE = "in_batch"
# Where and how a run was kept, not what it learned.
NOT_A_CHOICE = (
    "environment.", "version.", "dataset.", "out.", "advice.", "race.", "start.",
    "train.threads.", "train.keep_checkpoints.", "train.log_every.",
)  # fmt: skip
# Choices that runs of earlier versions do not name, and what held then.
ADDED_CHOICES = {"loss.mask_later": "false", "loss.q_power": "1.0"}
LABEL_KEYS = 3


@dataclass(frozen=True, slots=True)
class Variant:
    """Runs of one configuration over its seeds."""

    runs: tuple[Run, ...]
    options: Mapping[str, str]
    detail: str = ""

    @property
    def first(self) -> Run:
        """Any run stands for the configuration; this is the first."""
        return self.runs[0]

    @property
    def model_name(self) -> str:
        """The model in print."""
        return model_title(self.first.model)

    @property
    def sampler_name(self) -> str:
        """The sampler in print, with how it differs from others of its name in this report."""
        name = SAMPLER_NAMES.get(self.first.sampler, self.first.sampler)
        gradient = self.options.get("sampler.item_gradient", "")
        parts = [GRADIENT_NAMES.get(gradient, gradient), self.detail]
        return ", ".join([name, *filter(None, parts)])

    @property
    def label(self) -> str:
        """Model and sampler."""
        return f"{self.model_name} · {self.sampler_name}"


def model_title(model: str) -> str:
    """A model's name in print."""
    return MODEL_NAMES.get(model, model)


def position(name: str, known: Collection[str]) -> int:
    """Place in the order of the known names; others come after them."""
    return list(known).index(name) if name in known else len(known)


def group_runs(runs: Sequence[Run]) -> list[Variant]:
    """Put the seeds of one configuration together, in the order of the tables below."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        key = (run.dataset, run.model, run.sampler, tuple(sorted(choices(run.config).items())))
        groups.setdefault(key, []).append(run)
    variants = [Variant(tuple(group), choices(group[0].config)) for group in groups.values()]
    return sorted(_with_details(variants), key=_place)


def choices(config: Mapping[str, object]) -> dict[str, str]:
    """Every choice by dotted key, as text, also those that could not be made when the run was.

    Seeds and `NOT_A_CHOICE` are left out.
    """
    found = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in flat(config).items()
        if not f"{key}.".startswith(NOT_A_CHOICE) and key.split(".")[-1] != "seed"
    }
    return (ADDED_CHOICES | found) if found else found


def differing_keys(options: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys on which not all configurations agree; a missing key differs from every value."""
    keys = dict.fromkeys(key for option in options for key in option)
    return [key for key in keys if len({option.get(key) for option in options}) > 1]


def differing_settings(variants: Sequence[Variant]) -> list[str]:
    """Settings on which the variants differ, without the names that their labels show."""
    differing = differing_keys([variant.options for variant in variants])
    return [key for key in differing if key not in ("model.name", "sampler.name")]


def reference_of(variant: Variant, variants: Sequence[Variant]) -> Variant | None:
    """The in-batch variant to compare with: same data, model and batch size, else the most similar.

    A batch of another size has other negatives. In-batch sampling that masks later items is another
    method, and the reference only where there is no other.
    """
    same = [
        other
        for other in variants
        if other.first.sampler == REFERENCE
        and other.first.model == variant.first.model
        and other.first.dataset == variant.first.dataset
        and other.options.get("train.batch_size") == variant.options.get("train.batch_size")
    ]

    def distance(other: Variant) -> tuple[bool, int]:
        differing = differing_keys([variant.options, other.options])
        masks_later = other.options.get("loss.mask_later") == "true"
        return masks_later, sum(not key.startswith("sampler.") for key in differing)

    return min(same, key=distance, default=None)


def _with_details(variants: Sequence[Variant]) -> list[Variant]:
    """Name what differs between variants that would otherwise read the same."""
    same_name: dict[tuple[str, str], list[Variant]] = {}
    for variant in variants:
        same_name.setdefault((variant.first.dataset, variant.label), []).append(variant)
    detailed = []
    for variant in variants:
        others = same_name[variant.first.dataset, variant.label]
        # A single variant has no differing key; runs without a configuration have none to name.
        keys = differing_keys([other.options for other in others])
        shown = [f"{k.split('.')[-1]} {variant.options.get(k, '–')}" for k in keys[:LABEL_KEYS]]
        shown += [f"{len(keys) - LABEL_KEYS} more"] if len(keys) > LABEL_KEYS else []
        detailed.append(replace(variant, detail=", ".join(shown)))
    return detailed


def _place(variant: Variant) -> tuple[object, ...]:
    """By data set, then models and samplers in the order of the tables above, others last."""
    gradient = variant.options.get("sampler.item_gradient", "")
    model, sampler = variant.first.model, variant.first.sampler
    return (
        variant.first.dataset,
        position(model, MODEL_NAMES),
        model,
        position(sampler, SAMPLER_NAMES),
        sampler,
        position(gradient, GRADIENT_NAMES),
        [_natural(value) for value in variant.options.values()],
    )


def _natural(text: str) -> tuple[int, float, str]:
    """Numbers by size before words by letters."""
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)
