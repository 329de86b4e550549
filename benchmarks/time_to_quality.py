"""From the raw log to a given quality: processor and wall time, beside implicit's ALS and TFRS.

    python benchmarks/time_to_quality.py book-1m --work work --als 256,100,50 --tfrs adagrad:0.3 \
        --out results/time/book-1m.json

Every contender begins with `crossbatch prepare`, since all are measured on the same split. What
counts from there is a whole process: start, imports, compilation, evaluations and all, until the
validation recall@50 without seen items is reached; on one thread each.

- ALS: opening the dataset, 15 iterations with 256 factors, encoding and ranking the validation
  users.
- TFRS: YouTube DNN of Keras layers on the samples of our run, see `same_data.py`; the export of the
  samples and the ranking of its vectors are free.
- crossbatch: `crossbatch train`, until its journal has an evaluation that reaches what ALS reached
  in the end, and what TFRS did. With every default; with the tower named, so that no race is run;
  and with one pass over the samples instead of five. What numba compiles is compiled anew.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.data import open_dataset
from crossbatch.files import write_document
from measure.machine import describe
from measure.report import header, table_line
from measure.workers import ROOT
from same_data import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

TICKS = os.sysconf("SC_CLK_TCK")
EVAL_EVERY = 250
RAW = Path(os.environ.get("CROSSBATCH_DATA", ROOT.parent / "shared" / "data"))
SOURCES = {
    "book-1m": ("amazon2014-book-1m/interactions.parquet", "amazon2014-book-1m/items.parquet"),
    "beauty": ("amazon2014-beauty/interactions.parquet", "amazon2014-beauty/items.parquet"),
    "ml-1m": ("ml-1m/ml-1m.zip", None),
    "globo_news": ("globo_news/interactions.parquet", None),
}
ALS = """
import json, sys
from pathlib import Path
from crossbatch.data import open_dataset
from crossbatch.evaluation.baselines import BASELINES
from crossbatch.evaluation.evaluator import evaluate_recommender
from crossbatch.evaluation.list_measures import Popularity
dataset = open_dataset(Path(sys.argv[1]))
factors, alpha, l2 = json.loads(sys.argv[2])
recommend = BASELINES["als"].make(dataset, factors=factors, alpha=alpha, l2=l2)
popularity = Popularity.from_counts(dataset.item_counts)
users = dataset.eval_batches("valid")
found = evaluate_recommender(recommend, users, popularity=popularity, exclude_history=True)
print(found.means()["recall@50"])
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of the processor and of the clock."""

    cpu: float
    wall: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.wall + other.wall)


def environment() -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "TF_NUM_INTRAOP_THREADS")
    return os.environ | dict.fromkeys(names, "1")


def timed(work: Callable[[], Any]) -> tuple[Any, Cost]:
    """What a function returns, and the cost of the processes that it waited for."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    found = work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found, Cost(cpu, time.perf_counter() - wall)


def run(*words: str) -> str:
    """Standard output of a command."""
    done = subprocess.run(words, check=True, env=environment(), stdout=subprocess.PIPE, text=True)
    return done.stdout


def prepare(name: str, out: Path) -> Cost:
    shutil.rmtree(out, ignore_errors=True)
    source, items = SOURCES[name]
    words = ["prepare", str(RAW / source), "--out", str(out), "--quiet"]
    words += ["--items", str(RAW / items)] if items else []
    return timed(lambda: run(sys.executable, "-m", "crossbatch", *words))[1]


def train(data: Path, out: Path, settings: list[str], levels: dict[str, float]) -> dict[str, Cost]:
    """The cost at which a run reached each level; it is stopped after the last one."""
    compiled = out.with_name(f"{out.name}-compiled")
    for folder in (out, compiled):
        shutil.rmtree(folder, ignore_errors=True)
    words = ["train", "--data", str(data), "--out", str(out), "--quiet"]
    every_user = ("train.threads=1", f"train.eval_every={EVAL_EVERY}", "train.eval_users=0")
    for setting in (*every_user, *settings):
        words += ["--set", setting]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "crossbatch", *words],
        env=environment() | {"NUMBA_CACHE_DIR": str(compiled.resolve())},
    )
    reached: dict[str, Cost] = {}
    journal = out / "journal.jsonl"
    while process.poll() is None and len(reached) < len(levels):
        time.sleep(0.02)
        now = Cost(processor_seconds(process.pid), time.perf_counter() - began)
        best = max(values(journal), default=0.0)
        for name, level in levels.items():
            if best >= level:
                reached.setdefault(name, now)
    process.send_signal(signal.SIGINT)
    process.wait()
    return reached


def processor_seconds(process: int) -> float:
    """Seconds of a living process and of what it has waited for."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def values(journal: Path) -> list[float]:
    """What the evaluations in a journal found so far."""
    if not journal.is_file():
        return []
    lines = [line for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    events = [json.loads(line) for line in lines]
    return [event["value"] for event in events if event["event"] == "eval"]


def tfrs(data: Path, run_folder: Path, work: Path, venvs: Path, tried: str) -> dict[str, Any]:
    """TFRS on the samples of a finished run: what it reached, and the cost of its process."""
    peer = Peer(open_dataset(data), run_folder, work, venvs)
    peer.export()
    optimizer, rate = tried.split(":")
    found, cost = timed(lambda: peer.train("youtube_dnn", optimizer, float(rate), peer.steps))
    return {"value": found["valid"], "cost": cost}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one data set."""
    data = options.work / options.name
    start = prepare(options.name, data)
    factors, alpha, l2 = (float(each) for each in options.als.split(","))
    settings = json.dumps([int(factors), alpha, l2])
    text, cost = timed(lambda: run(sys.executable, "-c", ALS, str(data), settings))
    rows: dict[str, dict[str, Any]] = {"ALS": {"value": float(text.split()[-1]), "cost": cost}}
    named = list(options.tower)
    samples = open_dataset(data).num_samples(1, 0.0)
    one_pass = [f"train.max_steps={-(-samples // 256)}"]
    if options.tfrs:
        full = options.work / f"{options.name}-full"
        if not (full / "result.json").exists():
            train(data, full, named, {"never": 2.0})
        rows["TFRS"] = tfrs(data, full, options.work / "tfrs", options.venvs, options.tfrs)
    levels = {name: row["value"] for name, row in rows.items()}
    variants: dict[str, list[str]] = {
        "defaults": [],
        "tower named": named,
        "tower named, one pass": named + one_pass,
    }
    ours = {
        name: train(data, options.work / f"{options.name}-timed", words, levels)
        for name, words in variants.items()
    }
    return {
        "machine": describe(),
        "prepare": vars_of(start),
        "reached": {
            name: {"value": row["value"], **vars_of(start + row["cost"])}
            for name, row in rows.items()
        },
        "ours": {
            name: {level: vars_of(start + cost) for level, cost in costs.items()}
            for name, costs in ours.items()
        },
    }


def vars_of(cost: Cost) -> dict[str, float]:
    return {"cpu": round(cost.cpu, 2), "wall": round(cost.wall, 2)}


def markdown(name: str, document: dict[str, Any]) -> str:
    """A line for each contender and level."""
    lines = header("data", "recall@50 of", "per cent", "who", "CPU s", "wall s", "CPU ÷ its own")
    for level, row in document["reached"].items():
        value = f"{100 * row['value']:.2f}"
        cells = [f"{row['cpu']:.1f}", f"{row['wall']:.1f}", "1"]
        lines.append(table_line(name, level, value, level, *cells))
        for variant, costs in document["ours"].items():
            cells = ["not reached", "", ""]
            if level in costs:
                cost = costs[level]
                ratio = f"{cost['cpu'] / row['cpu']:.2f}"
                cells = [f"{cost['cpu']:.1f}", f"{cost['wall']:.1f}", ratio]
            lines.append(table_line(name, level, value, f"crossbatch, {variant}", *cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=list(SOURCES))
    parser.add_argument("--work", type=Path, required=True, help="folder of datasets and runs")
    parser.add_argument("--venvs", type=Path, default=ROOT, help="folder of TFRS' environment")
    parser.add_argument("--als", default="256,40,10", help="factors, alpha, regularisation")
    parser.add_argument("--tfrs", default="", help="optimizer:rate; left out if empty")
    parser.add_argument(
        "--tower",
        nargs="+",
        default=["model.name=recent_items", "train.history_length=10"],
        help="what the race chooses here, as settings",
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    document = measured(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_document(options.out, document)
    print(markdown(options.name, document))


if __name__ == "__main__":
    main()
