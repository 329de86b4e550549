"""What two undisturbed executions of a command have in common, to the last bit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from crossbatch.reports.journal import read_journal

if TYPE_CHECKING:
    from pathlib import Path

TIMES = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")
DATED = ("bundle.json", "README.md", "metrics.json")  # the day, and how fast the machine was
MEASURED = ("loss", "diagnostics", "metrics", "unseen", "value", "split", "users", "reason")


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder, but for locks."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def of_dataset(folder: Path) -> dict[str, Any]:
    return dict(files(folder))


def of_run(folder: Path) -> dict[str, Any]:
    """Weights, per-user metrics and examples as bytes; result and journal without the times."""
    found = files(folder)
    kept: dict[str, Any] = {
        name: content
        for name, content in found.items()
        if name.startswith("per_user/") or name in ("best/tensors.safetensors", "examples.json")
    }
    result = json.loads(found["result.json"])
    kept["result"] = {key: value for key, value in result.items() if key not in TIMES}
    kept["journal"] = [
        {"event": line["event"], "step": line["step"]} | {k: line[k] for k in MEASURED if k in line}
        for line in read_journal(folder / "journal.jsonl").events
        if line["event"] != "resume"
    ]
    kept["names"] = sorted(found)
    return kept


def of_bundle(folder: Path) -> dict[str, Any]:
    found = files(folder)
    return {name: found[name] for name in found if name not in DATED} | {"names": sorted(found)}


def of_grid(folder: Path) -> dict[str, Any]:
    """Every run of a grid, and which files the grid wrote about them."""
    runs = {path.name: of_run(path) for path in sorted((folder / "runs").iterdir())}
    return {"runs": runs, "names": sorted(path.name for path in folder.iterdir())}


def of_study(folder: Path) -> dict[str, Any]:
    """Every trial's settings and numbers, the recipe of the best, and which files there are."""
    found = files(folder)
    kept: dict[str, Any] = {name: found[name] for name in ("trials.json", "best.toml")}
    kept["trials"] = {path.name: of_trial(path) for path in sorted((folder / "trials").iterdir())}
    return kept | {"names": sorted(path.name for path in folder.iterdir())}


def of_trial(folder: Path) -> dict[str, Any]:
    """As `of_run`, of a run that was pruned perhaps: what its journal measured."""
    events = read_journal(folder / "journal.jsonl").events
    lines = [line for line in events if line["event"] in ("train", "eval")]
    measured = [{key: line[key] for key in ("step", *MEASURED) if key in line} for line in lines]
    return {"journal": measured, "names": sorted(files(folder))}
