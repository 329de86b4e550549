"""A machine that lets a command down: full disk, no right to write, no memory, a jumping clock.

The command ends with one sentence and leaves nothing half-written; once the machine is well again,
the same command ends as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from crossbatch.training.run_folder import RunFolder, RunInUseError

from . import fingerprints
from .commands import PATIENCE
from .conftest import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from random import Random

    from .commands import Commands, Ended
    from .conftest import Counts

USER_MISTAKE = 2
HANGS = 120.0  # seconds after which a command that takes one has hung
C_LIBRARY_GAVE_UP = 127  # no memory for the data of a new thread: it ends the process itself


@pytest.fixture
def disk(place: Path) -> Iterator[Path]:
    """A small file system of its own; `resize` changes what fits on it."""
    path = place / "disk"
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)  # also if a process is ending there


def resize(disk: Path, *options: str) -> None:
    subprocess.run(["mount", "-o", ",".join(("remount", *options)), str(disk)], check=True)


def one_sentence(ended: Ended, *, panics: bool = False) -> None:
    """A native library may have told of its own panic before."""
    assert ended.code == USER_MISTAKE, ended
    assert "Traceback" not in ended.stderr
    lines = ended.stderr.strip().splitlines()
    assert lines[-1].startswith("crossbatch: "), ended
    assert panics or len(lines) == 1, ended


@pytest.fixture
def jobs(raw: Path, recipe: Path, dataset: Path, run: Path) -> dict[str, list[object]]:
    return {
        "prepare": ["prepare", raw, "--quiet"],
        "train": ["train", recipe, "--data", dataset, "--resume", "--quiet"],
        "export": ["export", run, "--no-graph", "--quiet"],
    }


PRINTS = {
    "prepare": fingerprints.of_dataset,
    "train": fingerprints.of_run,
    "export": fingerprints.of_bundle,
}


@pytest.fixture
def undisturbed(dataset: Path, run: Path, bundle: Path) -> dict[str, Path]:
    return {"prepare": dataset, "train": run, "export": bundle}


@pytest.mark.parametrize("job", PRINTS)
def test_full_disk(
    job: str,
    disk: Path,
    commands: Commands,
    jobs: dict[str, list[object]],
    undisturbed: dict[str, Path],
    rng: Random,
    counts: Counts,
) -> None:
    """A disk on which a random share of the result fits, then one on which all of it does."""
    needed = sum(map(len, fingerprints.files(undisturbed[job]).values()))
    out = disk / "out"
    for _ in range(max(2, FAULTS // 100)):
        resize(disk, f"size={rng.randrange(8_192, int(0.9 * needed))}")
        one_sentence(commands.run(*jobs[job], "--out", out))
        assert job == "train" or not any(disk.iterdir()), "something was left behind"
        resize(disk, "size=64m")
        ended = commands.run(*jobs[job], "--out", out)
        assert ended.code == 0, ended.stderr
        assert PRINTS[job](out) == PRINTS[job](undisturbed[job])
        shutil.rmtree(out)
        counts.survived(f"full disk in {job}")


@pytest.mark.parametrize("job", PRINTS)
def test_files_that_may_not_grow(
    job: str, commands: Commands, place: Path, jobs: dict[str, list[object]], counts: Counts
) -> None:
    """As on a disk with a quota: RLIMIT_FSIZE, which needs no right to mount."""
    out = place / "limited" / job
    ended = commands.run(*jobs[job], "--out", out, limits={"RLIMIT_FSIZE": 3_000})
    one_sentence(ended)
    assert job == "train" or not out.exists()
    ended = commands.run(*jobs[job], "--out", out)
    assert ended.code == 0, ended.stderr
    shutil.rmtree(out)
    counts.survived(f"limited file size in {job}")


@pytest.mark.parametrize("job", PRINTS)
def test_read_only_folder(
    job: str, disk: Path, commands: Commands, jobs: dict[str, list[object]], counts: Counts
) -> None:
    resize(disk, "ro")
    one_sentence(commands.run(*jobs[job], "--out", disk / "out"))
    counts.survived(f"read-only folder in {job}")


@pytest.mark.slow
def test_a_run_whose_folder_becomes_read_only(
    disk: Path, commands: Commands, jobs: dict[str, list[object]], run: Path, counts: Counts
) -> None:
    resize(disk, "size=64m")
    shutil.copytree(run, disk / "out")
    (disk / "out" / "result.json").unlink()
    resize(disk, "ro")
    one_sentence(commands.run(*jobs["train"], "--out", disk / "out"))
    resize(disk, "rw")
    assert commands.run(*jobs["train"], "--out", disk / "out").code == 0
    counts.survived("read-only folder in train")


@pytest.mark.slow
@pytest.mark.parametrize("job", PRINTS)
def test_too_little_memory(
    job: str,
    commands: Commands,
    place: Path,
    jobs: dict[str, list[object]],
    undisturbed: dict[str, Path],
    rng: Random,
    counts: Counts,
) -> None:
    """Allocations fail somewhere: a sentence where Python hears of it, an abort where it cannot.

    An engine whose threads cannot get memory may also wait for them for ever: it is then killed.
    """
    out = place / "memory" / job
    for _ in range(max(2, FAULTS // 60)):
        more = rng.randrange(1 << 20, 200 << 20)
        limits = {"RLIMIT_AS": more}
        ended = commands.run(*jobs[job], "--out", out, limits=limits, kill_after=HANGS)
        if ended.code > 0 and ended.code != C_LIBRARY_GAVE_UP:
            one_sentence(ended, panics=True)
        how = {0: "enough after all", USER_MISTAKE: "one sentence"}.get(ended.code, "died")
        if ended.killed:
            how = "hung, and was killed"
        ended = commands.run(*jobs[job], "--out", out)
        assert ended.code == 0 or "already exists" in ended.stderr, ended
        assert PRINTS[job](out) == PRINTS[job](undisturbed[job])
        shutil.rmtree(out)
        counts.survived(f"failed allocation in {job}", how)


@pytest.mark.slow
@pytest.mark.parametrize("job", PRINTS)
def test_jumping_clock(
    job: str,
    commands: Commands,
    place: Path,
    jobs: dict[str, list[object]],
    undisturbed: dict[str, Path],
    rng: Random,
    counts: Counts,
) -> None:
    """Every look at the wall clock is years from the last one, killed and resumed runs included."""
    out = place / "clock" / job
    for _ in range(max(2, FAULTS // 100)):
        if job == "train":
            commands.run(*jobs[job], "--out", out, die_at=rng.randint(20, 60), clock=rng.random())
            for path in out.rglob("*"):  # a copy may have any times
                moment = rng.randrange(2**32)
                os.utime(path, (moment, moment))
        ended = commands.run(*jobs[job], "--out", out, clock=rng.random())
        assert ended.code == 0, ended.stderr
        assert PRINTS[job](out) == PRINTS[job](undisturbed[job])
        shutil.rmtree(out)
        counts.survived(f"jumping clock in {job}")


def _try_to_train(path: Path, barrier: multiprocessing.Barrier, winners: object) -> None:
    barrier.wait()
    folder = None
    with contextlib.suppress(RunInUseError):
        folder = RunFolder(path, resume=True)
    barrier.wait()
    if folder is not None:
        winners.put(os.getpid())
        folder.close()


def test_of_many_processes_on_one_run_folder_one_trains(tmp_path: Path, counts: Counts) -> None:
    fork = multiprocessing.get_context("fork")
    for _ in range(max(5, FAULTS // 20)):
        barrier, winners = fork.Barrier(4), fork.Queue()
        racers = [
            fork.Process(target=_try_to_train, args=(tmp_path / "run", barrier, winners))
            for _ in range(4)
        ]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
            assert racer.exitcode == 0
        assert winners.get(timeout=PATIENCE)
        assert winners.empty()
        counts.survived("several processes on one run folder")
