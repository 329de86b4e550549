"""A tiny dataset to train on, and hand-made grids to write tables from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ..tiny_runs import tiny_dataset, tiny_recipe

if TYPE_CHECKING:
    from crossbatch.data import Dataset

MakeGridRun = Callable[..., Path]
METRICS = ("recall@20", "recall@50", "ndcg@20", "ndcg@50", "ndcg_comirec@20", "ndcg_comirec@50")


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return tiny_dataset(tmp_path_factory.mktemp("data") / "tiny")


# A run of a second: 60 steps, an evaluation every 20.
BASE = tiny_recipe(
    {"name": "cross_batch", "warmup_steps": 20},
    train={"sample_by": "user", "max_steps": 60, "eval_every": 20, "log_every": 5, "lr": 0.01},
    item_features=[],
)

SAMPLERS: dict[str, dict[str, Any]] = {
    "in_batch": {"name": "in_batch"},
    "uniform": {"name": "uniform", "num_negatives": 40},
    "cross_batch": {"name": "cross_batch", "item_gradient": "paper", "warmup_steps": 100},
    "balanced": {"name": "cross_batch", "item_gradient": "balanced", "warmup_steps": 100},
    "drift_limited": {"name": "cross_batch", "item_gradient": "balanced", "max_staleness": 0.1},
    "sized_bank": {"name": "cross_batch", "item_gradient": "balanced", "max_repeats": 1.0},
    "full": {"name": "uniform", "num_negatives": 20},
    "auto": {"name": "auto", "budget": 1.2},
}


def events(recalls: tuple[float, ...]) -> list[dict[str, Any]]:
    """An evaluation every 100 steps at 10 steps a second."""
    lines: list[dict[str, Any]] = [{"event": "start", "step": 0, "environment": {"cpu": "toy"}}]
    for index, recall in enumerate(recalls, start=1):
        at = {"step": 100 * index, "seconds": 10.0 * index}
        metrics = {"recall@50": recall, "ndcg@50": recall / 2, "coverage@50": 0.123456789}
        lines.append({"event": "train", **at, "loss": 1 / 3, "diagnostics": {"hardness": 1 / 7}})
        lines.append({"event": "eval", **at, "split": "valid", "metrics": metrics})
    return [*lines, {"event": "stop", "step": 100 * len(recalls), "reason": "patience"}]


@pytest.fixture
def make_grid_run(tmp_path: Path) -> MakeGridRun:
    """Write a finished run of a grid in `tmp_path/grid`; per-user values decide its metrics."""

    def make(
        model: str,
        strategy: str,
        seed: int,
        users: np.ndarray[Any, Any],
        *,
        capacity: int | None = None,
        part: str = "runs",
        journal: list[dict[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Path:
        bank = "" if capacity is None else f"-M{capacity}"
        folder = tmp_path / "grid" / part / f"{model}-{strategy}{bank}-s{seed}"
        (folder / "per_user").mkdir(parents=True)
        sampler = dict(SAMPLERS[strategy])
        if sampler["name"] == "cross_batch":
            sampler["capacity"] = 76 if capacity is None else capacity
        config = {
            "model": {"name": model, "dim": 8},
            "sampler": sampler,
            "loss": {"temperature": 1.0},
            "train": {"seed": seed, "batch_size": 4},
            "dataset": {"path": "/somewhere/private/toy", "checksum": "c0ffee"},
            "version": "0.1.0",
            "environment": {"python": "3.11.9"},
        }
        (folder / "config.json").write_text(json.dumps(config))
        lines = journal or events((0.05, 0.08, 0.07))
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "journal.jsonl").write_text(text)
        values = np.asarray(users, dtype=np.float32)
        for key in METRICS:
            np.save(folder / "per_user" / f"test_{key}.npy", values)
        mean = float(values.astype(np.float64).mean())
        result = {
            "model": model, "sampler": sampler["name"], "seed": seed, "steps": 300,
            "best_step": 200, "seconds_per_1000_steps": 100.0 + seed, "convergence_minutes": 0.5,
            "cpu_seconds_per_1000_steps": 50.0 + seed,
            "valid": {"recall@50": 0.08}, "test": dict.fromkeys(METRICS, mean),
            "test_ci": {}, "num_users": len(values), "num_items": 20,
            "baselines": {"popularity": {"test": {"recall@50": 0.01}}}, **(extra or {}),
        }  # fmt: skip
        (folder / "result.json").write_text(json.dumps(result))
        return folder

    return make


def page_tables(page: str) -> list[list[list[str]]]:
    """The tables of a Markdown page, cells stripped of links, bold and escapes."""
    import re

    tables: list[list[list[str]]] = []
    inside = False
    for line in page.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        if not inside:
            tables.append([])
            inside = True
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        cells = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell) for cell in cells]
        tables[-1].append([cell.replace("\\", "").replace("**", "") for cell in cells])
    return tables
