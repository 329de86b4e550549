"""Tiny hand-made run folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MakeRun = Callable[..., Path]


def run_config(model: str, sampler: Mapping[str, Any], seed: int, **extra: Any) -> dict[str, Any]:
    return {
        "model": {"name": model, "dim": 8},
        "sampler": dict(sampler),
        "train": {"seed": seed, "batch_size": 4, "lr": 0.001},
        "dataset": {"path": "data/toy", "checksum": "c0ffee"},
        "version": "0.1.0",
        "environment": {"python": "3.11.9", "cpu": "toy"},
        **extra,
    }


def toy_journal(recalls: Sequence[float], stop: str | None = "patience") -> list[dict[str, Any]]:
    """An evaluation every 100 steps at 10 steps a second."""
    events: list[dict[str, Any]] = [
        {"event": "start", "step": 0, "time": "2026-01-02T03:04:05Z", "environment": {}}
    ]
    for index, recall in enumerate(recalls, start=1):
        step, seconds = 100 * index, 10.0 * index
        diagnostics = {"negatives_per_row": 3, "hardness": -1 / index}
        events.append(
            {"event": "train", "step": step, "seconds": seconds, "loss": 5 / index, "lr": 0.001,
             "steps_per_second": 10.0, "diagnostics": diagnostics}
        )  # fmt: skip
        metrics = {"recall@50": recall, "ndcg@50": recall / 2}
        events.append(
            {"event": "eval", "step": step, "seconds": seconds, "split": "valid",
             "metrics": metrics}
        )  # fmt: skip
    if stop:
        events.append({"event": "stop", "step": 100 * len(recalls), "reason": stop})
    return events


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run folder; every part can be left out with None."""

    def make(
        name: str,
        *,
        model: str = "mind",
        sampler: str = "in_batch",
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
        per_user: Mapping[str, Sequence[float]] | None = None,
        test: Mapping[str, float] | None = None,
        config: Mapping[str, Any] | None = None,
        journal: Sequence[Mapping[str, Any]] | None = (),
        result: Mapping[str, Any] | None = None,
        finished: bool = True,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        settings = config or run_config(model, {"name": sampler, **(options or {})}, seed)
        (folder / "config.json").write_text(json.dumps(settings))
        if journal is not None:
            events = journal or toy_journal([0.05, 0.08, 0.07])
            text = "".join(json.dumps(event) + "\n" for event in events)
            (folder / "journal.jsonl").write_text(text)
        metrics = dict(test or {"recall@50": 0.1})
        if per_user:
            (folder / "per_user").mkdir()
        for key, values in (per_user or {}).items():
            array = np.asarray(values, dtype=np.float32)
            np.save(folder / "per_user" / f"test_{key}.npy", array)
            metrics[key] = float(array.mean(dtype=np.float64))
        if finished:
            record = {
                "model": model, "sampler": sampler, "seed": seed, "steps": 300, "best_step": 200,
                "seconds_per_1000_steps": 100.0, "convergence_minutes": 0.5,
                "valid": {"recall@50": 0.08}, "test": metrics, "num_users": 10, "num_items": 20,
            }  # fmt: skip
            (folder / "result.json").write_text(json.dumps({**record, **(result or {})}))
        return folder

    return make
