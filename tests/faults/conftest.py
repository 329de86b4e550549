"""A small log, its dataset and two runs: everything that the fault suite breaks copies of.

`CROSSBATCH_FAULTS=300` makes the suite inject about so many kills and as many flipped bits;
without it a short version runs. `CROSSBATCH_FAULTS_REPORT` names the file for what was counted.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .commands import Commands

if TYPE_CHECKING:
    from collections.abc import Iterator

FAULTS = int(os.environ.get("CROSSBATCH_FAULTS", "0"))
REPORT = os.environ.get("CROSSBATCH_FAULTS_REPORT")
SHORT = 16
SEED = 20211

# 24 steps, three evaluations, a bank that is read from step 8 on: a run of half a second.
RECIPE = """
[model]
name = "youtube_dnn"
dim = 8
item_features = []
user_features = []
[sampler]
name = "cross_batch"
capacity = 70
warmup_steps = 8
[train]
batch_size = 32
max_steps = 24
eval_every = 8
log_every = 4
lr = 0.01
threads = 1
device = "cpu"
"""


@dataclass
class Count:
    """Faults of one kind: those injected, those survived, and what was lost."""

    injected: int = 0
    survived: int = 0
    lost: int = 0
    remarks: dict[str, int] = field(default_factory=dict)


class Counts:
    """What the whole suite injected, by kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, Count] = {}

    def of(self, kind: str) -> Count:
        return self.kinds.setdefault(kind, Count())

    def survived(self, kind: str, remark: str = "") -> None:
        """One more fault after which everything was as it must be."""
        count = self.of(kind)
        count.injected += 1
        count.survived += 1
        if remark:
            count.remarks[remark] = count.remarks.get(remark, 0) + 1


@pytest.fixture(scope="session")
def counts(request: pytest.FixtureRequest) -> Iterator[Counts]:
    kept, began = Counts(), time.monotonic()
    yield kept
    if REPORT:
        kinds = {kind: asdict(count) for kind, count in sorted(kept.kinds.items())}
        document = {
            "asked": FAULTS or SHORT,
            "seed": SEED,
            "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "minutes": round((time.monotonic() - began) / 60),
            "failed_tests": request.session.testsfailed,
            "kinds": kinds,
        }
        Path(REPORT).write_text(json.dumps(document, indent=1) + "\n")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Seeded by the test's own name: the same faults in every run of the suite."""
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all commands of the suite work in."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def commands(place: Path) -> Iterator[Commands]:
    with Commands(place) as running:
        yield running


@pytest.fixture(scope="session")
def recipe(place: Path) -> Path:
    path = place / "recipe.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="session")
def raw(commands: Commands, place: Path) -> Path:
    path = place / "raw"
    small = ("--users", 200, "--items", 100, "--interactions", 2500)
    assert commands.run("synth", "--raw", path, *small, "--quiet").code == 0
    return path


@pytest.fixture(scope="session")
def dataset(commands: Commands, raw: Path, place: Path) -> Path:
    path = place / "dataset"
    ended = commands.run("prepare", raw, "--out", path, "--quiet")
    assert ended.code == 0, ended.stderr
    return path


@pytest.fixture(scope="session")
def growing(commands: Commands, raw: Path, place: Path) -> Path:
    """A dataset that days can be added to."""
    path = place / "growing"
    ended = commands.run("prepare", raw, "--out", path, "--split", "day", "--growing", "--quiet")
    assert ended.code == 0, ended.stderr
    return path


@pytest.fixture(scope="session")
def day(place: Path) -> Path:
    """The log of a further day."""
    path = place / "day.csv"
    rows = "".join(f"new{n % 7},B{n % 9:08d},{2_000_000_000 + n}\n" for n in range(80))
    path.write_text("user,item,timestamp\n" + rows)
    return path


@pytest.fixture(scope="session")
def run(commands: Commands, recipe: Path, dataset: Path, place: Path) -> Path:
    return trained(commands, recipe, dataset, place / "run")


@pytest.fixture(scope="session")
def other_run(commands: Commands, recipe: Path, dataset: Path, place: Path) -> Path:
    """A run of another seed."""
    return trained(commands, recipe, dataset, place / "other-run", "--set", "train.seed=1")


@pytest.fixture(scope="session")
def run_with_moments(commands: Commands, recipe: Path, dataset: Path, place: Path) -> Path:
    """A run that keeps the moments of its optimiser."""
    return trained(commands, recipe, dataset, place / "moments", "--set", "train.moments=save")


def trained(commands: Commands, recipe: Path, dataset: Path, out: Path, *more: str) -> Path:
    ended = commands.run("train", recipe, "--data", dataset, "--out", out, "--quiet", *more)
    assert ended.code == 0, ended.stderr
    return out


@pytest.fixture(scope="session")
def bundle(commands: Commands, run: Path, place: Path) -> Path:
    return exported(commands, run, place / "bundle")


@pytest.fixture(scope="session")
def content_bundle(commands: Commands, recipe: Path, dataset: Path, place: Path) -> Path:
    """A bundle whose towers read all features of items and users."""
    features = [("--set", f'model.{side}_features=["*"]') for side in ("item", "user")]
    reading = [word for words in features for word in words]
    run = trained(commands, recipe, dataset, place / "content-run", *reading)
    return exported(commands, run, place / "content-bundle")


def exported(commands: Commands, run: Path, out: Path) -> Path:
    ended = commands.run("export", run, "--out", out, "--no-graph", "--quiet")
    assert ended.code == 0, ended.stderr
    return out
