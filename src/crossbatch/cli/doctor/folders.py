"""Checks of dataset, run and bundle folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from crossbatch.cli.doctor.findings import Finding, note, ok, problem
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import CHECKSUMS, read_document, verify_checksums
from crossbatch.reports.journal import read_journal

TRAIN = "crossbatch train RECIPE --data DATASET --out RUN"


def dataset_files(folder: Path) -> Iterator[Finding]:
    """Check a dataset's files; say which sampler the default recipe would use for it."""
    from crossbatch.data import open_dataset

    try:
        dataset = open_dataset(folder)
        dataset.verify()
    except DataError as error:
        yield problem("files", str(error), "crossbatch prepare SOURCE --out DATASET --overwrite")
        return
    manifest = dataset.manifest
    yield ok(
        "files",
        f"format {manifest['format_version']}, {len(manifest['files'])} files as written: "
        f"{dataset.num_users:,} users, {dataset.num_items:,} items",
    )
    from crossbatch.config import PAPER, Recipe
    from crossbatch.training.auto_sampler import choose_sampler

    try:  # with a named model: the default one is chosen by a race that takes minutes
        yield ok("negatives", str(choose_sampler(Recipe.from_dict(PAPER), dataset)))
    except ConfigError as error:  # a dataset can be too small for the default batch
        yield note("negatives", str(error), "set train.batch_size in the recipe")


def run_lock(folder: Path) -> Iterator[Finding]:
    """Check whether a process is training in the folder."""
    from crossbatch.training.run_folder import in_use

    busy = in_use(folder)
    yield note("lock", "a process is training in it now") if busy else ok("lock", "free")


def run_state(folder: Path) -> Iterator[Finding]:
    """Check whether a run is finished, and which release wrote it."""
    config = _document(folder / "config.json")
    if config is None:
        yield problem("state", f"{folder} holds no run: no readable config.json", TRAIN)
        return
    if _document(folder / "result.json") is not None:
        yield ok("state", "finished")
    elif (folder / "result.json").is_file():
        yield problem("state", "result.json is not valid JSON", f"{TRAIN} again")
    else:
        yield note("state", "not finished", f"{TRAIN} --resume continues it exactly")
    ours, theirs = version("crossbatch"), config.get("version")
    if theirs != ours:
        yield note("release", f"made by crossbatch {theirs}, this is {ours}")


def run_files(folder: Path) -> Iterator[Finding]:
    """Compare a finished run with its checksums."""
    try:
        verify_checksums(folder)
    except DataError as error:
        yield problem("files", str(error), f"restore the file from a copy, or {TRAIN} again")
        return
    if (folder / CHECKSUMS).is_file():
        yield ok("files", "as written")


def best_model(folder: Path) -> Iterator[Finding]:
    """Check the best model, which evaluation and export read."""
    if not (folder / "best").is_dir():
        yield note("best model", "none yet", "train until the first evaluation")
        return
    yield _checkpoint("best model", folder / "best", f"{TRAIN} again, in another folder")


def checkpoints(folder: Path) -> Iterator[Finding]:
    """Check the checkpoints that `--resume` would read, newest first."""
    if (folder / "result.json").is_file():
        return  # a finished run has none
    paths = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    found = []
    for path in paths:
        remedy = "--resume uses the one before" if path != paths[-1] else "train again"
        found.append(_checkpoint("checkpoint", path, f"rm -r {path}; {remedy}"))
    yield from found
    if not any(each.level == "ok" for each in found):
        yield note("checkpoint", "none that can be read", "--resume begins at step 0")


def _checkpoint(check: str, path: Path, remedy: str) -> Finding:
    from crossbatch.training.checkpoint import load

    try:
        _, document = load(path)
    except DataError as error:
        return problem(check, str(error), remedy)
    return ok(check, f"of step {document['step']:,}, as written")


def journal(folder: Path) -> Iterator[Finding]:
    """Check every line of the journal, and repeat its warnings."""
    path = folder / "journal.jsonl"
    if not path.is_file():
        yield note("journal", "none yet")
        return
    found = read_journal(path)
    if found.bad_lines:
        remedy = "--resume cuts it back to the last checkpoint; reports skip such lines"
        yield note("journal", f"{found.bad_lines} lines are not those of a journal", remedy)
    else:
        yield ok("journal", f"{len(found.events):,} lines")
    for event in found.of("warning"):
        yield note("training", f"step {event['step']:,}: {event['message']}")
    for event in found.of("stop"):
        if event.get("reason") == "nan":
            message = f"the loss was no longer finite at step {event['step']:,}"
            yield problem("training", message, "lower train.lr, or raise loss.temperature")


def run_dataset(folder: Path) -> Iterator[Finding]:
    """Check the dataset that a run was trained on."""
    from crossbatch.data.dataset.manifest import read_manifest
    from crossbatch.remote import is_url

    trained_on = (_document(folder / "config.json") or {}).get("dataset")
    if trained_on is None:
        return
    if is_url(trained_on["path"]):
        yield ok("dataset", f"{trained_on['path']}, which is compared when it is opened")
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


def bundle_files(folder: Path) -> Iterator[Finding]:
    """Check a bundle's format version, checksums and one recommendation."""
    from crossbatch.serving import BundleError, open_bundle

    try:
        bundle = open_bundle(folder)
    except BundleError as error:
        yield problem("files", str(error), "crossbatch export RUN --out BUNDLE --overwrite")
        return
    yield ok(
        "files",
        f"format {bundle.manifest['format_version']}, {len(bundle.manifest['files'])} files as "
        f"written: {bundle.num_items:,} items, version {bundle.version}",
    )
    (answer,) = bundle.recommend([bundle.item_keys([1])], 1)
    yield ok("answer", f"recommends {len(answer.items)} item for a history of one")


def leftovers_beside(folder: Path) -> Iterator[Finding]:
    """Look for temporary copies of a dataset or bundle beside it."""
    folder = folder.absolute()
    replaced = folder.parent / f".{folder.name}.aside"
    if replaced.exists() and not folder.exists():
        yield problem(
            "leftovers",
            f"{folder.name} was being replaced when the process was killed; the earlier one is "
            f"{replaced}",
            f"mv {replaced} {folder}",
        )
        return
    partial = sorted(folder.parent.glob(f".{folder.name}.partial-*"))
    yield _leftovers([*partial, *([replaced] if replaced.exists() else [])])


def run_leftovers(folder: Path) -> Iterator[Finding]:
    """Look for half-written files of a killed training."""
    patterns = (".*.partial", ".*.aside", "checkpoints/.*.partial", "checkpoints/.*.aside")
    yield _leftovers(sorted(path for each in patterns for path in folder.glob(each)))


def _leftovers(paths: Iterable[Path]) -> Finding:
    names = [str(path) for path in paths]
    if not names:
        return ok("leftovers", "none")
    return note(
        "leftovers",
        f"{len(names)} temporary {'file' if len(names) == 1 else 'files'} of a killed process",
        f"if nothing writes there now: rm -r {' '.join(names)}",
    )


def _document(path: Path) -> dict[str, Any] | None:
    try:
        return read_document(path, "")
    except DataError:
        return None
