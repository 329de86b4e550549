"""Keep what tables and figures need of a grid, in a hundredth of its size.

    keep_records(GridFolder(Path("paper")), Path("results/books"))

A record is a run folder without its model: `config.json`, `result.json`, a thinned journal, and the
per-user metrics behind the intervals in one compressed file, exact to the bit. Every command that
reads run folders reads records, so the same tables and figures come out of them.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.files import write_file
from crossbatch.reports.runs import PER_USER_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from crossbatch.reports.runs import Run
    from crossbatch.reproduce.folder import GridFolder

PARTS = ("runs", "probes")  # of a search, search.json has every number
FILES = (
    "grid.json", "baselines.json", "settings.toml", "search.json", "search.csv", "search.md",
)  # fmt: skip
PER_USER = ("recall@50", "ndcg_comirec@50", "ndcg@50")  # the gains that Table 1 shows
EVAL_METRICS = ("recall@50", "ndcg@50", "ndcg_comirec@50")
TRAIN_LINES = 12  # of a journal, evenly over training
DIGITS = 4


def keep_records(folder: GridFolder, out: Path) -> list[Path]:
    """Copy the records of a grid's finished runs.

    Args:
        folder: The grid.
        out: Where the records go; records of other runs that are there stay.

    Returns:
        The folders and files written.
    """
    written = []
    for name in FILES:
        source = folder.path / name
        if source.is_file():
            written.append(write_file(out / name, source.read_bytes()))
    for part in PARTS:
        if not (folder.path / part).is_dir():
            continue
        finished = [run for run in folder.runs(part) if run.finished]
        written += [_keep_run(run, out / part / run.path.name) for run in finished]
    return written


def _keep_run(run: Run, out: Path) -> Path:
    dataset = {**run.config.get("dataset", {}), "path": run.dataset_name}  # not where it lay
    write_file(out / "config.json", _json({**run.config, "dataset": dataset}))
    lines = b"".join(_json(event) for event in thinned(run.journal.events))
    write_file(out / "journal.jsonl", lines)
    columns: dict[str, Any] = {f"test_{key}": run.per_user(key) for key in PER_USER}
    known = {name: values for name, values in columns.items() if values is not None}
    if known:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **known)
        write_file(out / PER_USER_FILE, buffer.getvalue())
    write_file(out / "result.json", _json(run.result))  # last: with it a record is finished
    return out


def thinned(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All events of a journal but most of its training lines.

    Those that stay are rounded; evaluations keep the metrics that figures show, and probes all.
    """
    events = list(events)
    train = [index for index, event in enumerate(events) if event["event"] == "train"]
    step = max(1, -(-len(train) // TRAIN_LINES))
    wanted = {*train[step - 1 :: step], *train[-1:]}
    kept = []
    for index, event in enumerate(events):
        if event["event"] == "train" and index not in wanted:
            continue
        short = dict(event)
        short.pop("environment", None)  # config.json has it
        if event["event"] == "eval":
            metrics = event.get("metrics", {})
            short["metrics"] = {key: metrics[key] for key in EVAL_METRICS if key in metrics}
        kept.append(_rounded(short) if event["event"] == "train" else short)
    return kept


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
