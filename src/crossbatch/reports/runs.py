"""Read run folders, whole or unfinished.

    runs = read_runs([Path("runs/in_batch"), Path("runs/cross_batch")])

A folder counts as a run when it holds at least one of `config.json`, `journal.jsonl` and
`result.json`; what is missing stays empty and is named in `Run.notes`. A folder that holds
none of them, or a file that is not what its name says, is a `DataError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossbatch.errors import DataError
from crossbatch.files import read_document, seal_is_broken, verify_checksums
from crossbatch.reports.formatting import METRIC_NAMES
from crossbatch.reports.journal import Journal, follow, number, read_journal

RUN_FILES = ("config.json", "journal.jsonl", "result.json")

UNSEEN = "unseen_"  # before a metric in which items that the user has had are left out

STOP_REASONS = {
    "patience": "converged",
    "max_steps": "reached max_steps",
    "interrupted": "interrupted",
    "nan": "stopped at a NaN loss",
}


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run folder in memory; the per-user arrays stay on disk until asked for."""

    path: Path
    name: str
    config: Mapping[str, Any]
    journal: Journal
    result: Mapping[str, Any]
    examples: Sequence[Mapping[str, Any]]
    notes: tuple[str, ...]
    baselines_file: Mapping[str, Any] = field(default_factory=dict)  # content of `baselines.json`

    @property
    def model(self) -> str:
        """Name of the user tower, as in the recipe."""
        return self._named("model")

    @property
    def sampler(self) -> str:
        """Name of the negative sampler, as in the recipe."""
        return self._named("sampler")

    @property
    def seed(self) -> int | None:
        """Seed of the run, from the result or, while it is unfinished, from the recipe."""
        configured = follow(self.config, "train", "seed")
        for value in (self.result.get("seed"), configured, self.config.get("seed")):
            if (seed := number(value)) is not None:
                return int(seed)
        return None

    @property
    def dataset(self) -> str:
        """Identity of the data set: the checksum, else the path, else nothing."""
        checksum, path = (follow(self.config, "dataset", key) for key in ("checksum", "path"))
        return str(checksum or path or "")

    @property
    def dataset_name(self) -> str:
        """Last part of the data set's path."""
        return Path(str(follow(self.config, "dataset", "path") or "")).name

    @property
    def finished(self) -> bool:
        """Whether the run has written its result."""
        return bool(self.result)

    @property
    def status(self) -> str:
        """One or two words: how the run ended, or that it did not."""
        stop = self.journal.last("stop")
        reason = str(stop.get("reason")) if stop else ""
        if reason:
            return STOP_REASONS.get(reason, reason)
        return "finished" if self.finished else "unfinished"

    @property
    def steps(self) -> int:
        """Optimiser steps taken, as far as the folder knows."""
        seen = [number(event.get("step")) or 0.0 for event in self.journal.events]
        return int(max([number(self.result.get("steps")) or 0.0, *seen]))

    @property
    def seconds_per_1000_steps(self) -> float | None:
        """From the result; of an unfinished run, from the last line of the journal."""
        value = number(self.result.get("seconds_per_1000_steps"))
        last = self.journal.last("train")
        if value is not None or last is None:
            return value
        seconds, step = number(last.get("seconds")), number(last.get("step"))
        return 1000 * seconds / step if seconds and step else None

    @property
    def cpu_seconds_per_1000_steps(self) -> float | None:
        """Processor time, which other work on the machine does not stretch."""
        return number(self.result.get("cpu_seconds_per_1000_steps"))

    @property
    def convergence_minutes(self) -> float | None:
        """Training minutes until the early stop."""
        return number(self.result.get("convergence_minutes"))

    def metrics(self, split: str = "test") -> dict[str, float]:
        """Final metrics of a split as fractions; empty while the run is unfinished.

        Those with seen items left out are called `unseen_recall@50` and so on.
        """
        return both_protocols(self.result.get(split), self.result.get(f"{split}_unseen"))

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Test metrics of the baselines that were measured beside the run, by name."""
        found = {}
        beside, tuned = self.result.get("baselines"), self.baselines_file.get("baselines")
        for name, entry in beside.items() if isinstance(beside, Mapping) else ():
            if isinstance(entry, Mapping):
                found[str(name)] = both_protocols(entry.get("test"), entry.get("test_unseen"))
        for name, entry in tuned.items() if isinstance(tuned, Mapping) else ():
            test = follow(entry, "splits", "test", "metrics")
            unseen = follow(entry, "splits", "test", "unseen", "metrics")
            if metrics := both_protocols(test, unseen):
                found[str(name)] = metrics
        return {name: metrics for name, metrics in found.items() if metrics}

    def interval(self, metric: str) -> tuple[float, float] | None:
        """95 % interval of a test metric over users, if the run wrote one."""
        split = "test_unseen" if metric.startswith(UNSEEN) else "test"
        pair = follow(self.result, f"{split}_ci", metric.removeprefix(UNSEEN))
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        low, high = number(pair[0]), number(pair[1])
        return (low, high) if low is not None and high is not None else None

    def per_user(self, metric: str, split: str = "test") -> npt.NDArray[np.float32] | None:
        """Per-user values [U] of a metric, or None where the run has not written them."""
        path = self.path / "per_user" / f"{split}_{metric}.npy"
        if (self.path / "per_user.npz").is_file():
            raise DataError(
                f"{self.path} is a record of an earlier version; make it again from the run with "
                "`crossbatch reproduce … --keep`"
            )
        if not path.is_file():
            return None
        try:
            values = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DataError(
                f"{path} is not a NumPy array ({error}); evaluate the run again"
            ) from error
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.floating):
            raise DataError(
                f"{path} must hold one number per user, got {values.dtype} of shape "
                f"{values.shape}; evaluate the run again"
            )
        return np.asarray(values, dtype=np.float32)

    def _named(self, section: str) -> str:
        value = self.result.get(section) or self.config.get(section)
        if isinstance(value, Mapping):
            value = value.get("name")
        return str(value) if value else "unknown"


def read_runs(paths: Sequence[Path | str]) -> list[Run]:
    """Read several run folders; each gets the shortest name that no other has."""
    if not paths:
        raise DataError("a report needs at least one run folder, got none; name one or more")
    unique = list({path.resolve(): path for path in map(Path, paths)}.values())
    names = _short_names([path.resolve() for path in unique])
    return [read_run(path, name) for path, name in zip(unique, names, strict=True)]


def read_run(path: Path | str, name: str | None = None) -> Run:
    """Read one run folder; reports call it `name`, by default as the folder."""
    path = Path(path)
    if not path.is_dir():
        raise DataError(
            f"{path} is not a folder; give the run folder that `crossbatch train` wrote"
        )
    if not any((path / file).is_file() for file in RUN_FILES):
        raise DataError(
            f"{path} is not a run: it holds none of {', '.join(RUN_FILES)}; "
            "give the run folder that `crossbatch train` wrote"
        )
    verify_checksums(path)
    journal = read_journal(path / "journal.jsonl")
    config, result = (
        read_document(path / file, "the run must be trained again")
        if (path / file).is_file()
        else {}
        for file in ("config.json", "result.json")
    )
    notes = []
    if not (path / "journal.jsonl").is_file():
        notes.append("the journal is missing: no curves")
    elif journal.bad_lines:
        plural = "line" if journal.bad_lines == 1 else "lines"
        notes.append(f"{journal.bad_lines} unreadable journal {plural} skipped")
    if not result:
        notes.append("no result yet: it has no test metrics")
    examples, more = _read_examples(path / "examples.json")
    baselines, broken = _read_baselines(path / "baselines.json")
    name = name or path.resolve().name
    notes += [*more, *broken]
    return Run(path, name, config, journal, result, examples, tuple(notes), baselines)


def numbers(values: object) -> dict[str, float]:
    """The finite numbers of a JSON object, by key."""
    if not isinstance(values, Mapping):
        return {}
    converted = ((str(key), number(value)) for key, value in values.items())
    return {key: value for key, value in converted if value is not None}


def both_protocols(everything: object, unseen: object) -> dict[str, float]:
    """Metrics by key, and those in which seen items are left out with `unseen_` before the key."""
    left_out = numbers(unseen).items()
    kinds = {key: f"{UNSEEN}{key.partition('@')[0]}" for key, _ in left_out}
    return numbers(everything) | {
        f"{UNSEEN}{key}": value for key, value in left_out if kinds[key] in METRIC_NAMES
    }


def _read_baselines(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read the tuned baselines; a broken file gives a note, not an error."""
    if not path.is_file():
        return {}, []
    remedy = "delete it and evaluate the run again"
    try:
        document = read_document(path, remedy)
    except DataError as error:
        return {}, [f"the baselines were left out: {error}"]
    if seal_is_broken(document):
        return {}, [f"the baselines were left out: {path.name} was changed; {remedy}"]
    return document, []


def _read_examples(path: Path) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Read the examples; a broken file gives a note, not an error."""
    if not path.is_file():
        return [], []
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return [], ["examples.json is not valid JSON and was left out"]
    if not isinstance(values, list):
        return [], ["examples.json does not hold a list and was left out"]
    return [value for value in values if isinstance(value, dict)], []


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The fewest trailing parts of the paths that tell them apart, equally many for all."""
    depth = max((len(path.parts) for path in paths), default=1)
    names = [str(path) for path in paths]
    for count in range(1, depth + 1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names
