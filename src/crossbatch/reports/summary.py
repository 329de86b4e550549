"""What the numbers say, and what they do not: sentences for the head of a report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossbatch.reports import formatting
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.journal import follow, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crossbatch.reports.comparison import Comparison
    from crossbatch.reports.runs import Run

FEW_SEEDS = 3
NUMBER = re.compile(r"-?\d[\d.]*(e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Fact:
    """One headline number: what it is, the number, and what it belongs to."""

    title: str
    value: str
    detail: str


def facts(comparison: Comparison, runs: Sequence[Run]) -> list[Fact]:
    """The few numbers a reader looks for first."""
    metric = comparison.headline
    finished, steps = sum(run.finished for run in runs), sum(run.steps for run in runs)
    size = str(len(runs)) if finished == len(runs) else f"{finished} of {len(runs)}"
    found = [Fact("Finished runs", size, f"{steps:,} steps in all")]
    rows = [row for row in comparison.rows if row.variant and metric in row.metrics]
    if len(comparison.datasets) > 1:  # metrics of different data sets have no common best
        return found
    if rows:
        best = max(rows, key=lambda row: row.metrics[metric].mean)
        value = f"{formatting.percent(best.metrics[metric])} %"
        found.insert(0, Fact(f"Best test {metric_name(metric)}", value, best.label))
    gains = [row for row in rows if metric in row.gains]
    if gains:
        top = max(gains, key=lambda row: row.gains[metric].relative)
        gain, detail = top.gains[metric], top.label
        if gain.interval is not None:
            low, high = (formatting.signed(bound) for bound in gain.interval)
            detail += f", 95 % interval {low} to {high}"
        value = f"{formatting.signed(gain.relative)} %"
        found.insert(1, Fact(f"Largest gain over in-batch, {metric_name(metric)}", value, detail))
    times = [(row.seconds_per_1000_steps, row.label) for row in comparison.rows]
    timed = [(seconds, label) for seconds, label in times if seconds]
    if timed:
        seconds, label = min(timed, key=lambda pair: pair[0].mean)
        found.append(Fact("Fastest 1000 steps", f"{formatting.amount(seconds)} s", label))
    return found


def caveats(comparison: Comparison, runs: Sequence[Run]) -> list[str]:
    """Everything that should keep a reader from over-reading the table, in plain sentences."""
    sentences = [f"{run.name}: {note}." for run in runs for note in run.notes]
    sentences += [*_unconverged(runs), *_bank_unused(runs), *_worse_than_baselines(comparison)]
    rows = [row for row in comparison.rows if row.variant]
    few = sum(len(row.runs) < FEW_SEEDS for row in rows)
    if few and len(rows) > 1:
        sentences.append(
            f"{formatting.count(few, 'configuration')} of {len(rows)} ran with fewer than "
            f"{FEW_SEEDS} seeds: differences of a few per cent may be chance."
        )
    if not all(gain.interval for row in rows for gain in row.gains.values()):
        sentences.append(
            "Some gains have no interval, because a run or its reference keeps no per-user metrics."
        )
    if len(comparison.datasets) > 1:
        sentences.append(
            f"The runs used {len(comparison.datasets)} data sets "
            f"({', '.join(comparison.datasets)}): compare only within one."
        )
    return sentences


def warnings(runs: Sequence[Run]) -> list[str]:
    """Warnings that the runs wrote in their journals: each kind once, with how many runs had it."""
    kinds: dict[str, dict[str, str]] = {}  # message without its numbers -> run -> message
    for run in runs:
        for event in run.journal.of("warning"):
            message = str(event.get("message") or "")
            if message:
                kinds.setdefault(NUMBER.sub("#", message), {}).setdefault(run.name, message)
    sentences = []
    for messages in kinds.values():
        name, message = next(iter(messages.items()))
        many = f"{formatting.count(len(messages), 'run')}, first " if len(messages) > 1 else ""
        sentences.append(f"{many}{name}: {message}")
    return sentences


def _unconverged(runs: Sequence[Run]) -> list[str]:
    stops = {run.name: run.journal.last("stop") for run in runs}
    reasons = {name: str(stop.get("reason")) for name, stop in stops.items() if stop}
    texts = {
        "max_steps": "reached max_steps before the early stop, so longer training might raise "
        "its metrics and its convergence time is a lower bound",
        "nan": "met a loss that is not a number",
        "interrupted": "was interrupted",
    }
    sentences = []
    for reason, text in texts.items():
        names = [name for name, why in reasons.items() if why == reason]
        if reason == "max_steps":  # where the learning rate falls until then, that is the plan
            schedules = {run.name: follow(run.config, "train", "schedule") for run in runs}
            planned = {name for name, how in schedules.items() if how not in (None, "constant")}
            names = [name for name in names if name not in planned]
        if names:
            sentences.append(f"{_names(names)} {text}.")
    return sentences


def _bank_unused(runs: Sequence[Run]) -> list[str]:
    """A best model from before the bank was switched on says nothing about the bank."""
    names = []
    for run in runs:
        warmup = number(follow(run.config, "sampler", "warmup_steps"))
        best = number(run.result.get("best_step"))
        if run.sampler == "cross_batch" and warmup and best is not None and best <= warmup:
            names.append(run.name)
    if not names:
        return []
    return [
        f"{_names(names)} tested a model from within the warm-up: its bank was not in use yet, "
        "so these numbers are in-batch's."
    ]


def _worse_than_baselines(comparison: Comparison) -> list[str]:
    """A model that a simple baseline beats is not worth its training."""
    metric, sentences = comparison.headline, []
    for dataset in comparison.datasets:
        rows = [row for row in comparison.rows if row.dataset == dataset and metric in row.metrics]
        for baseline in (row for row in rows if row.variant is None):
            level = baseline.metrics[metric].mean
            behind = [row.label for row in rows if row.variant and row.metrics[metric].mean < level]
            if behind:
                sentences.append(
                    f"{baseline.label} has a higher test {metric_name(metric)} "
                    f"({100 * level:.2f} %) than {_names(behind, noun='other configuration')}."
                )
    return sentences


def _names(names: Sequence[str], noun: str = "other run") -> str:
    """The first three names, and how many more there are."""
    shown, rest = ", ".join(names[:3]), len(names) - 3
    return f"{shown} and {formatting.count(rest, noun)}" if rest > 0 else shown
