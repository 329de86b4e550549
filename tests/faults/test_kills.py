"""SIGKILL at random moments and at single changes to the file system; then the same command again.

Half of the kills come after a random time, half just before a change (a file opened for writing, a
rename, a removal), for that is where a half-done step would show. Whatever a kill leaves must be
whole or absent at once, and equal to the undisturbed result, to the bit, in the end.
"""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from crossbatch.data import open_dataset
from crossbatch.serving import open_bundle

from . import fingerprints
from .conftest import FAULTS, SHORT, Counts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from .commands import Commands, Ended

MOST_KILLS = 12  # of one execution; then it may finish


@dataclass(frozen=True)
class Victim:
    """A command that is killed until it succeeds.

    Attributes:
        argv: Its arguments for an output folder.
        fingerprint: What must be equal at the end.
        check: Asserts what must hold after every kill.
        begin: Puts in place what is there before it starts.
        share: Of all kills.
    """

    argv: Callable[[Path], list[object]]
    fingerprint: Callable[[Path], dict[str, Any]]
    check: Callable[[Path], None]
    begin: Callable[[Path], None] = lambda _: None
    share: float = 0.3


def whole_or_absent(out: Path) -> None:
    if out.exists():
        open_dataset(out).verify()


@pytest.fixture
def victims(
    recipe: Path,
    raw: Path,
    dataset: Path,
    run: Path,
    run_with_moments: Path,
    bundle: Path,
    content_bundle: Path,
    growing: Path,
    day: Path,
    place: Path,
) -> dict[str, Victim]:
    train = ["--data", dataset, "--resume", "--quiet"]
    guarded = ["sampler.max_staleness=0.5", "sampler.guard=true", "train.log_every=3"]
    options = [word for each in guarded for word in ("--set", each)]
    keep = ["--set", "train.moments=keep", "--from", run_with_moments]
    items = place / "items.csv"
    items.write_text("item,title,category\nnew,A new one,x\n")
    stock = place / "stock.csv"
    stock.write_text(f"item,stock\n{open_bundle(bundle).item_keys([1])[0]},3\n")
    users = place / "users.parquet"
    histories = [["B00000001"], ["B00000002", "B00000003"]]
    pl.DataFrame({"user": ["a", "b"], "history": histories}).write_parquet(users)
    older = place / "older"
    older.mkdir(exist_ok=True)
    shutil.copy(users, older / "lists.parquet")
    space = place / "space.toml"
    space.write_text("[train]\nlr = { low = 0.001, high = 0.1, log = true }\n")
    grid = ["--models", "youtube_dnn", "--samplers", "in_batch,balanced", "--seeds", 0]
    return {
        "prepare": Victim(
            lambda out: ["prepare", raw, "--out", out, "--quiet"],
            fingerprints.of_dataset,
            whole_or_absent,
            share=0.27,
        ),
        "prepare --append": Victim(
            # in place: at no moment may there be none, and a repeated command adds nothing twice
            lambda out: ["prepare", day, "--append", out, "--out", out, "--overwrite", "--quiet"],
            fingerprints.of_dataset,
            lambda out: open_dataset(out).verify(),
            begin=lambda out: shutil.copytree(growing, out) and None,
            share=0.12,
        ),
        "train": Victim(
            lambda out: ["train", recipe, "--out", out, *train],
            fingerprints.of_run,
            lambda _: None,
            share=0.45,
        ),
        "train with a guarded bank": Victim(
            lambda out: ["train", recipe, "--out", out, *train, *options],
            fingerprints.of_run,
            lambda _: None,
            share=0.1,
        ),
        "train of an own tower": Victim(
            lambda out: [
                "train", recipe, "--out", out, *train, "--set", 'model.name="auto"',
                "--set", 'model.user_tower="own_towers:MeanLayer"',
            ],
            fingerprints.of_run,
            lambda _: None,
            share=0.25,
        ),
        "recommend --users": Victim(
            # over an older file
            lambda out: [
                "recommend", bundle, "--users", users, "--out", out / "lists.parquet", "-k", 5,
                "--quiet", "--overwrite",
            ],
            fingerprints.files,
            lambda out: pl.read_parquet(out / "lists.parquet").height and None,
            begin=lambda out: shutil.copytree(older, out) and None,
            share=0.15,
        ),
        "items add": Victim(
            lambda out: [
                "items", "add", content_bundle, items, "--out", out, "--quiet", "--overwrite",
            ],
            fingerprints.of_bundle,
            lambda out: open_bundle(out) and None,
            begin=lambda out: shutil.copytree(content_bundle, out) and None,
            share=0.1,
        ),
        "items set": Victim(
            lambda out: [
                "items", "set", bundle, stock, "--filter-column", "stock:integer", "--out", out,
                "--quiet", "--overwrite",
            ],
            fingerprints.of_bundle,
            lambda out: open_bundle(out) and None,
            begin=lambda out: shutil.copytree(bundle, out) and None,
            share=0.1,
        ),
        "train --from": Victim(
            # with the moments of its optimiser, which checkpoints and the best model then have
            lambda out: ["train", recipe, "--out", out, *train, *keep],
            fingerprints.of_run,
            lambda _: None,
            share=0.1,
        ),
        "tune": Victim(
            lambda out: [
                "tune", recipe, "--data", dataset, "--out", out, "--space", space, "--trials", 3,
                "--quiet",
            ],
            fingerprints.of_study,
            lambda _: None,
            share=0.04,
        ),
        "export": Victim(
            # over an older bundle: at no moment may there be none, or half of one
            lambda out: ["export", run, "--out", out, "--no-graph", "--quiet", "--overwrite"],
            fingerprints.of_bundle,
            lambda out: open_bundle(out) and None,
            begin=lambda out: shutil.copytree(bundle, out) and None,
            share=0.25,
        ),
        "reproduce": Victim(
            lambda out: [
                "reproduce", "table1", "--data", dataset, "--out", out, "--recipe", recipe,
                *grid, "--quiet",
            ],
            fingerprints.of_grid,
            lambda _: None,
            share=0.05,
        ),
    }  # fmt: skip


def fresh(place: Path, name: str) -> Path:
    """An output folder in an empty folder of its own, so that leftovers show."""
    home = place / "kills" / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    return home / "out"


def kill(commands: Commands, argv: list[object], usual: Ended, rng: Random) -> Ended:
    """Run a command that will be killed at some moment."""
    assert usual.changes is not None
    if rng.random() < 0.5:
        alone = rng.random() < 0.5  # or with the workers that it started
        moment = rng.uniform(0, usual.seconds)
        return commands.run(*argv, kill_after=moment, descendants=not alone)
    return commands.run(*argv, die_at=rng.randint(1, usual.changes))


@pytest.mark.parametrize(
    "name",
    [
        "prepare",
        "prepare --append",
        "train",
        "export",
        "items set",
        "train --from",
        pytest.param("train with a guarded bank", marks=pytest.mark.slow),
        pytest.param("train of an own tower", marks=pytest.mark.slow),
        pytest.param("recommend --users", marks=pytest.mark.slow),
        pytest.param("items add", marks=pytest.mark.slow),
        pytest.param("tune", marks=pytest.mark.slow),
        pytest.param("reproduce", marks=pytest.mark.slow),
    ],
)
def test_killed_and_started_again(
    name: str,
    victims: dict[str, Victim],
    commands: Commands,
    place: Path,
    rng: Random,
    counts: Counts,
) -> None:
    victim = victims[name]
    out = fresh(place, name)
    victim.begin(out)
    usual = commands.run(*victim.argv(out))
    assert usual.code == 0, usual.stderr
    expected = victim.fingerprint(out)
    wanted = max(2, round(victim.share * (FAULTS or SHORT)))
    kills = 0
    while kills < wanted:
        out = fresh(place, name)
        victim.begin(out)
        since = 0
        while True:
            tired = since >= MOST_KILLS or kills >= wanted
            argv = victim.argv(out)
            ended = commands.run(*argv) if tired else kill(commands, argv, usual, rng)
            assert ended.killed or ended.code == 0, ended.stderr
            victim.check(out)
            if not ended.killed:
                break
            kills, since = kills + 1, since + 1
        assert victim.fingerprint(out) == expected
        assert [path.name for path in out.parent.iterdir()] == ["out"], "leftovers beside it"
        for _ in range(since):
            counts.survived(f"SIGKILL in {name}")


@pytest.mark.slow
def test_stopped_and_started_again(
    victims: dict[str, Victim], commands: Commands, place: Path, rng: Random, counts: Counts
) -> None:
    """Ctrl-C saves between two steps, whichever they are: not a number may tell of it."""
    victim, out = victims["train"], fresh(place, "stops")
    usual = commands.run(*victim.argv(out))
    expected = victim.fingerprint(out)
    wanted = max(2, FAULTS // 10)
    stops = 0
    while stops < wanted:
        out, before = fresh(place, "stops"), stops
        while True:
            moment = rng.uniform(0, usual.seconds)
            patient = stops - before < MOST_KILLS and stops < wanted
            after = moment if patient else None
            if commands.run(*victim.argv(out), kill_after=after, how=signal.SIGINT).code == 0:
                break
            stops += 1
        assert victim.fingerprint(out) == expected
        for _ in range(stops - before):
            counts.survived("SIGINT in train")
