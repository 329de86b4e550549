"""Keep what tables and figures need of a grid, in a hundredth of its size and in one file.

    keep_records(GridFolder(Path("paper")), Path("results/books"))

A record is a run folder without its model: `config.json`, `result.json`, a thinned journal, and the
per-user metrics behind the intervals, exact to the bit. `records.tar.xz` holds those of all
finished runs; the same runs give the same bytes. `GridFolder` reads it as it reads run folders.
"""

from __future__ import annotations

import atexit
import io
import json
import lzma
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.errors import DataError
from crossbatch.files import write_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from crossbatch.reports.runs import Run
    from crossbatch.reproduce.folder import GridFolder

RECORDS_FILE = "records.tar.xz"
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
        out: Folder of the records; those of other runs that it holds stay.

    Returns:
        The files written.
    """
    written = []
    for name in FILES:
        source = folder.path / name
        if source.is_file():
            written.append(write_file(out / name, source.read_bytes()))
    contents: dict[str, bytes] = {}
    for part in PARTS:
        if (folder.path / part).is_dir():
            for run in folder.runs(part):
                if run.finished:
                    contents |= _record(run, f"{part}/{run.path.name}")
    if contents:
        written.append(pack_records(out, _packed_files(out) | contents))
    return written


def pack_records(out: Path, contents: Mapping[str, bytes]) -> Path:
    """Write `records.tar.xz` from file contents by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(contents):
            member = tarfile.TarInfo(name)  # no times and no owners: the same runs, the same bytes
            member.size = len(contents[name])
            archive.addfile(member, io.BytesIO(contents[name]))
    return write_file(out / RECORDS_FILE, buffer.getvalue())


def unpacked_records(folder: Path) -> Path:
    """Unpack `records.tar.xz` into a temporary folder that lasts until the process ends."""
    path = folder / RECORDS_FILE
    return _unpack(path, path.stat().st_mtime_ns)


@cache
def _unpack(path: Path, _changed: int) -> Path:
    target = Path(tempfile.mkdtemp(prefix="crossbatch-records-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    try:
        with tarfile.open(path, "r:xz") as archive:
            archive.extractall(target, filter="data")
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); restore it") from None
    return target


def _packed_files(folder: Path) -> dict[str, bytes]:
    if not (folder / RECORDS_FILE).is_file():
        return {}
    root = unpacked_records(folder)
    paths = [path for path in root.rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _record(run: Run, name: str) -> dict[str, bytes]:
    """The files of one record."""
    dataset = {**run.config.get("dataset", {}), "path": run.dataset_name}  # not its private path
    files = {
        "config.json": _json({**run.config, "dataset": dataset}),
        "journal.jsonl": b"".join(_json(event) for event in thinned(run.journal.events)),
        "result.json": _json(run.result),
    }
    for metric in PER_USER:
        values = run.per_user(metric)
        if values is not None:
            buffer = io.BytesIO()
            np.save(buffer, values)
            files[f"per_user/test_{metric}.npy"] = buffer.getvalue()
    return {f"{name}/{file}": content for file, content in files.items()}


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
