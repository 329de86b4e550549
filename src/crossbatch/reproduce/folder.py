"""`GridFolder`: the runs below one folder, what is written beside them, and small records of them.

    folder = GridFolder(Path("paper"))
    folder.runs("runs")                            # every run of the grid, finished or not
    write_page(folder, "table1", "Table 1", [table, note], rows)
    keep_records(folder, Path("results/books"))    # what tables and figures need, in one file

`grid.json` holds what tables need to know and run folders do not say. A page is Markdown, with the
same numbers as CSV and JSON, and figures.

A record is a run folder without its model: `config.json`, `result.json`, a thinned journal, and the
per-user metrics behind the intervals, exact to the bit. `records.tar.xz` holds those of all
finished runs; the same runs give the same bytes. `GridFolder` reads it as it reads run folders.
"""

from __future__ import annotations

import atexit
import csv
import io
import json
import lzma
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from crossbatch.errors import DataError
from crossbatch.files import files_below, flat, read_document, sealed, write_document, write_file
from crossbatch.reports.markdown import literal
from crossbatch.reports.runs import RUN_FILES, Run, read_run
from crossbatch.reports.svg import write_panels
from crossbatch.reproduce.design import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from crossbatch.reports.plots import BarChart, Plot

RUN_NAME = re.compile(r"(.+?)-([a-z_]+)(?:-M(\d+))?-s(\d+)")
RECORDS_FILE = "records.tar.xz"
PARTS = ("runs", "probes")  # of a search, search.json has every number
FILES = (
    "grid.json", "baselines.json", "settings.toml", "search.json", "search.csv", "search.md",
)  # fmt: skip
METRICS = ("recall@50", "ndcg@50", "ndcg_comirec@50")  # all that figures and gains show
TRAIN_LINES = 12  # of a journal, evenly over training


class RunName(NamedTuple):
    """What a run's folder name says."""

    model: str
    strategy: str  # a key of `STRATEGIES`
    capacity: int | None  # of the bank, where it is not the strategy's usual one
    seed: int


def run_name(run: Run) -> RunName:
    """Read the name of a run's folder."""
    found = RUN_NAME.fullmatch(run.path.name)
    if found is None:
        raise DataError(
            f"{run.path} is no run of a grid: its name must be like youtube_dnn-in_batch-s0"
        )
    model, strategy, capacity, seed = found.groups()
    return RunName(model, strategy, int(capacity) if capacity else None, int(seed))


@dataclass(frozen=True, slots=True)
class GridFolder:
    """A folder that a grid was trained in, or the records of one."""

    path: Path

    def runs(self, part: str = "runs") -> list[Run]:
        """The runs of a part ("runs", "probes" or "search") by name.

        Raises:
            DataError: If there are none.
        """
        home = self.path / part
        if not home.is_dir() and (self.path / RECORDS_FILE).is_file():
            home = unpacked_records(self.path) / part
        paths = sorted(home.iterdir()) if home.is_dir() else []
        found = [path for path in paths if any((path / name).is_file() for name in RUN_FILES)]
        if not found:
            raise DataError(f"{self.path / part} holds no run; train some with --data")
        return [read_run(path) for path in found]

    def table_runs(self) -> list[Run]:
        """The runs of Table 1: every model and strategy with its usual bank."""
        shown = {name for name, strategy in STRATEGIES.items() if strategy.in_table1}
        named = [(run, run_name(run)) for run in self.runs()]
        return [run for run, name in named if name.capacity is None and name.strategy in shown]

    @property
    def facts(self) -> dict[str, Any]:
        """What `grid.json` says."""
        return self._read("grid.json")

    @property
    def baselines(self) -> dict[str, Any]:
        """Metrics of popularity and item-kNN, if they were measured."""
        return dict(self._read("baselines.json").get("baselines", {}))

    def add_facts(self, **facts: Any) -> None:
        """Write facts into `grid.json`, over what it says of them."""
        write_document(self.path / "grid.json", self.facts | facts)

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return read_document(path, "train the grid again") if path.is_file() else {}


def keep_records(folder: GridFolder, out: Path) -> list[Path]:
    """Copy the records of a grid's finished runs; `out` keeps those of other runs that it holds."""
    found = [name for name in FILES if (folder.path / name).is_file()]
    written = [write_file(out / name, (folder.path / name).read_bytes()) for name in found]
    contents: dict[str, bytes] = {}
    for part in PARTS:
        for run in folder.runs(part) if (folder.path / part).is_dir() else ():
            if run.finished:
                contents |= _record(run, f"{part}/{run.path.name}")
    if not contents:
        return written
    if (out / RECORDS_FILE).is_file():
        kept = files_below(unpacked_records(out))
        contents = {name: path.read_bytes() for name, path in kept.items()} | contents
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(contents):
            member = tarfile.TarInfo(name)  # no times and no owners: the same runs, the same bytes
            member.size = len(contents[name])
            archive.addfile(member, io.BytesIO(contents[name]))
    return [*written, write_file(out / RECORDS_FILE, buffer.getvalue())]


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


def _record(run: Run, name: str) -> dict[str, bytes]:
    """The files of one record."""
    dataset = {**run.config.get("dataset", {}), "path": run.dataset_name}  # not its private path
    files = {
        "config.json": _json({**run.config, "dataset": dataset}),
        "journal.jsonl": b"".join(_json(event) for event in thinned(run.journal.events)),
        "result.json": _json(run.result),
    }
    for metric in METRICS:
        path = run.path / "per_user" / f"test_{metric}.npy"
        if path.is_file():
            files[f"per_user/{path.name}"] = path.read_bytes()
    return {f"{name}/{file}": content for file, content in files.items()}


def thinned(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A journal without most of its training lines.

    Those that stay are rounded; evaluations keep `METRICS`, and other events everything.
    """
    kept = [{k: v for k, v in e.items() if k != "environment"} for e in events]  # in config.json
    train = [event for event in kept if event["event"] == "train"]
    every = max(1, -(-len(train) // TRAIN_LINES))
    dropped = {id(event) for n, event in enumerate(train[:-1], start=1) if n % every}
    kept = [event for event in kept if id(event) not in dropped]
    for event in kept:
        if event["event"] == "train":
            event |= json.loads(json.dumps(event), parse_float=lambda x: float(f"{float(x):.4g}"))
        if event["event"] == "eval":
            metrics = event.get("metrics", {})
            event["metrics"] = {key: metrics[key] for key in METRICS if key in metrics}
    return kept


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Figure:
    """Plots that stand together in one file, `columns` in a row."""

    name: str
    plots: Sequence[Plot | BarChart]
    columns: int
    caption: str
    captioned: bool = True  # whether the caption also stands below the figure


def write_page(
    folder: GridFolder,
    name: str,
    title: str,
    parts: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    figure: Figure | None = None,
) -> list[Path]:
    """Write the files `name` of one experiment into the grid's folder.

    `parts` are Markdown below the title, `rows` the numbers for CSV and JSON. The figure is drawn
    below the tables, if it has plots.
    """
    out, facts, drawn, text = folder.path, folder.facts, [], [f"# {title}"]
    if data := facts.get("dataset"):
        text.append(
            f"Data: {literal(data['name'])}, {data['users']:,} users, {data['items']:,} items, "
            f"{data['interactions']:,} interactions."
        )
    if facts.get("budget"):
        text.append(
            f"**Shortened: every run was cut to {facts['budget']:,} steps. "
            "These are not results of convergence.**"
        )
    text += parts
    if figure and figure.plots:
        drawn = _draw(figure, out / "figures")
        caption = literal(figure.caption)
        text.append(f"![{caption}](figures/{figure.name}.svg)")
        text += [f"*{caption}*"] if figure.captioned else []
    document = {"experiment": name} | facts | {"rows": rows}
    document = sealed(json.loads(json.dumps(document)))  # keys as they will be read
    return [
        write_file(out / f"{name}.md", ("\n\n".join(text) + "\n").encode()),
        write_file(out / f"{name}.csv", _csv(rows).encode()),
        write_document(out / f"{name}.json", document),
        *drawn,
    ]


def run_link(run: Run, folder: GridFolder, text: str) -> str:
    """A Markdown link from a page of the grid to a run's folder; plain text for a record."""
    if not run.path.is_relative_to(folder.path):
        return literal(text)
    return f"[{literal(text)}]({quote(run.path.relative_to(folder.path).as_posix())})"


def run_links(runs: Sequence[Run], folder: GridFolder) -> str:
    """The seeds of some runs, each linked to its folder."""
    ordered = sorted(runs, key=lambda run: run.seed or 0)
    return " ".join(run_link(run, folder, str(run.seed)) for run in ordered)


def _draw(figure: Figure, folder: Path) -> list[Path]:
    """SVG always; PNG and PDF where matplotlib is installed."""
    path = folder / f"{figure.name}.svg"
    written = [write_panels(figure.plots, path, columns=figure.columns)]
    if find_spec("matplotlib"):
        from crossbatch.reports.figures import draw_panels

        written += draw_panels(figure.plots, folder, figure.name, columns=figure.columns)
    return written


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [{key: _cell(value) for key, value in flat(row).items()} for row in rows]
    heads = list(dict.fromkeys(key for line in lines for key in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _cell(value: object) -> object:
    """Lists as words."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value
