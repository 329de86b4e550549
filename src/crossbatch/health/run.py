"""Whether a run folder can be gone on with, evaluated and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError
from crossbatch.health.finding import Finding, note, ok, problem
from crossbatch.health.leftovers import temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAIN = "crossbatch train RECIPE --data DATASET --out RUN"


def in_training(folder: Path) -> Iterator[Finding]:
    """Whether a process trains in the folder at this moment."""
    from crossbatch.training.run_folder import in_use

    busy = in_use(folder)
    yield note("lock", "a process trains in it now") if busy else ok("lock", "free")


def state(folder: Path) -> Iterator[Finding]:
    """Finished or not, and by which release."""
    from importlib.metadata import version

    config = _json(folder / "config.json")
    if config is None:
        yield problem("state", f"{folder} holds no run: no whole config.json", TRAIN)
        return
    if _json(folder / "result.json") is not None:
        yield ok("state", "finished")
    elif (folder / "result.json").is_file():
        yield problem("state", "result.json is not valid JSON", f"{TRAIN} anew")
    else:
        yield note("state", "not finished", f"{TRAIN} --resume goes on exactly")
    if config.get("version") != version("crossbatch"):
        yield note(
            "release",
            f"made by crossbatch {config.get('version')}, this is {version('crossbatch')}",
        )


def files(folder: Path) -> Iterator[Finding]:
    """The checksums that a finished run lists."""
    from crossbatch.files import CHECKSUMS, verify_checksums

    try:
        verify_checksums(folder)
    except DataError as error:
        yield problem("files", str(error), f"restore the file from a copy, or {TRAIN} anew")
        return
    if (folder / CHECKSUMS).is_file():
        yield ok("files", "as written")


def best(folder: Path) -> Iterator[Finding]:
    """The best model: what evaluation and export read."""
    from crossbatch.training.checkpoint import load

    if not (folder / "best").is_dir():
        yield note("best model", "none yet", "train until the first evaluation")
        return
    try:
        _, document = load(folder / "best")
    except DataError as error:
        yield problem("best model", str(error), f"{TRAIN} anew, in another folder")
        return
    yield ok("best model", f"of step {document['step']:,}, as written")


def checkpoints(folder: Path) -> Iterator[Finding]:
    """The checkpoints that `--resume` would read, newest first."""
    from crossbatch.training.checkpoint import load

    if (folder / "result.json").is_file():
        return  # a finished run has none
    paths = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    whole = 0
    for path in paths:
        try:
            _, document = load(path)
        except DataError as error:
            remedy = "--resume uses the one before" if path != paths[-1] else "train anew"
            yield problem("checkpoint", str(error), f"rm -r {path}; {remedy}")
        else:
            whole += 1
            yield ok("checkpoint", f"of step {document['step']:,}, as written")
    if not whole:
        yield note("checkpoint", "none that can be read", "--resume begins at step 0")


def journal(folder: Path) -> Iterator[Finding]:
    """Every line of the journal, and what it warned of."""
    path = folder / "journal.jsonl"
    if not path.is_file():
        yield note("journal", "none yet")
        return
    lines = path.read_bytes().splitlines()
    events, broken = [], 0
    for line in lines:
        try:
            events.append(json.loads(line))
        except (ValueError, RecursionError):
            broken += 1
    if broken:
        remedy = "--resume cuts it back to the last checkpoint; reports pass over such lines"
        yield note("journal", f"{broken} of {len(lines):,} lines are not JSON", remedy)
    else:
        yield ok("journal", f"{len(lines):,} lines")
    for event in events:
        if event.get("event") == "warning":
            yield note("training", f"step {event['step']:,}: {event['message']}")
        elif event.get("event") == "stop" and event.get("reason") == "nan":
            yield problem(
                "training",
                f"the loss was no longer finite at step {event['step']:,}",
                "lower train.lr, or raise loss.temperature",
            )


def data(folder: Path) -> Iterator[Finding]:
    """The dataset that it was trained on."""
    from crossbatch.data.folder import read_manifest

    trained_on = (_json(folder / "config.json") or {}).get("dataset")
    if trained_on is None:
        return
    path, remedy = Path(trained_on["path"]), "pass --data DATASET to evaluate, export, recommend"
    try:
        manifest = read_manifest(path)
    except DataError as error:
        yield note("dataset", str(error), f"if it has moved, {remedy}")
        return
    if manifest["checksum"] != trained_on["checksum"]:
        yield problem("dataset", f"{path} is not the one that the run was trained on", remedy)
    else:
        yield ok("dataset", str(path))


def leftovers(folder: Path) -> Iterator[Finding]:
    """Half-written files of a killed training."""
    patterns = (".*.partial", ".*.aside", "checkpoints/.*.partial", "checkpoints/.*.aside")
    yield from temporary(sorted(path for each in patterns for path in folder.glob(each)))


def _json(path: Path) -> dict[str, Any] | None:
    """The document, or None if it is missing or broken."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
