"""Files that change behind our back: every change is noticed, or changes nothing.

A fault is a flipped bit, a truncation, a block of zeros or a missing file, at a random place of a
random file. After it the folder must either be refused with one sentence, or give what it gave
before, to the bit.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import read_document
from crossbatch.reports.runs import read_run
from crossbatch.serving import open_bundle
from crossbatch.training import fit
from crossbatch.training.progress import Progress
from crossbatch.training.run_folder import open_run

from . import fingerprints
from .conftest import FAULTS, SHORT, Counts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

BLOCK = 512
SECTIONS = ("model", "sampler", "loss", "train")
NEWEST = "checkpoints/step-000000024"


def flip(content: bytearray, rng: Random) -> bytes:
    place = rng.randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    return bytes(content)


def truncate(content: bytearray, rng: Random) -> bytes:
    return bytes(content[: rng.randrange(len(content))])


def zero(content: bytearray, rng: Random) -> bytes:
    start = rng.randrange(len(content))
    content[start : start + BLOCK] = bytes(len(content[start : start + BLOCK]))
    return bytes(content)


FAULTS_OF_A_FILE: dict[str, Callable[[bytearray, Random], bytes] | None] = {
    "flipped bit": flip,
    "truncation": truncate,
    "zeroed block": zero,
    "missing file": None,
}
WEIGHTS = (6, 1, 1, 1)


def damage(folder: Path, rng: Random) -> str:
    """Damage one file of a folder and return what was done to which."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    path = rng.choice([path for path in paths if path.stat().st_size])
    kind = rng.choices(list(FAULTS_OF_A_FILE), WEIGHTS)[0]
    change = FAULTS_OF_A_FILE[kind]
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(bytearray(path.read_bytes()), rng))
    return f"{kind} in {path.relative_to(folder)}"


def copy(folder: Path, place: Path) -> Path:
    target = place / "corruption" / folder.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


def rounds(share: float) -> range:
    return range(max(8, round(share * (FAULTS or SHORT))))


def test_datasets(dataset: Path, place: Path, rng: Random, counts: Counts) -> None:
    before = open_dataset(dataset).manifest
    for _ in rounds(1.0):
        victim = copy(dataset, place)
        fault = damage(victim, rng)
        try:
            opened = open_dataset(victim)
            opened.verify()
        except DataError:
            counts.survived("corruption of a dataset", "noticed")
            continue
        assert "manifest" in fault, fault
        said = {key: value for key, value in opened.manifest.items() if key in before}
        assert said | {"seal": before["seal"]} == before, fault  # only the seal was hit
        counts.survived("corruption of a dataset", "harmless")


def test_bundles(bundle: Path, place: Path, rng: Random, counts: Counts) -> None:
    def answers(folder: Path) -> Any:
        opened = open_bundle(folder)
        return opened.recommend([opened.item_keys([3, 5])], 10)

    before = answers(bundle)
    for _ in rounds(1.0):
        victim = copy(bundle, place)
        fault = damage(victim, rng)
        try:
            assert answers(victim) == before, fault
        except DataError:
            counts.survived("corruption of a bundle", "noticed")
        else:
            counts.survived("corruption of a bundle", "harmless")


def test_finished_runs(run: Path, place: Path, rng: Random, counts: Counts) -> None:
    """Whoever reads a run refuses a damaged one: the report, the evaluation, the resume."""
    recipe = Recipe.from_dict({k: open_config(run)[k] for k in SECTIONS})
    data = open_dataset(open_config(run)["dataset"]["path"])
    before = fingerprints.of_run(run)

    def resume(path: Path) -> None:
        fit(data, recipe, path, resume=True)

    for _ in rounds(0.5):
        victim = copy(run, place)
        fault = damage(victim, rng)
        noticed = [refused(read, victim) for read in (read_run, open_run, resume)]
        if fault == "missing file in result.json":  # as if the run had not ended: it ends again
            assert noticed == [True, True, False]
        elif any(noticed) and "best/" not in fault:  # which only evaluation reads
            assert all(noticed), fault
        if not noticed[-1] and "best/" not in fault:
            found = fingerprints.of_run(victim) | {"names": before["names"]}
            assert found == before, fault
        counts.survived("corruption of a finished run", "noticed" if any(noticed) else "harmless")


def refused(read: Callable[[Path], Any], folder: Path) -> bool:
    try:
        read(folder)
    except (ConfigError, DataError):
        return True
    return False


def open_config(run: Path) -> dict[str, Any]:
    return read_document(run / "config.json", "")


class Listener(Progress):
    """Collects the messages of a run."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture(scope="module")
def cut(run: Path, place: Path) -> Path:
    """The same run, stopped after its last checkpoint and before its result."""
    config = open_config(run)
    recipe = Recipe.from_dict({k: config[k] for k in SECTIONS})
    out = place / "cut"

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossbatch.training.run.Session.finish", killed)
        with pytest.raises(RuntimeError, match="killed"):
            fit(open_dataset(config["dataset"]["path"]), recipe, out)
    return out


def test_unfinished_runs(cut: Path, run: Path, place: Path, rng: Random, counts: Counts) -> None:
    """Resume goes back to the newest good checkpoint and says so, or refuses; never goes astray."""
    config = open_config(run)
    recipe = Recipe.from_dict({k: config[k] for k in SECTIONS})
    data, expected = open_dataset(config["dataset"]["path"]), fingerprints.of_run(run)
    for _ in rounds(0.5):
        victim = copy(cut, place)
        fault = damage(victim, rng)
        listener = Listener()
        try:
            fit(data, recipe, victim, resume=True, progress=listener)
        except (ConfigError, DataError):
            counts.survived("corruption of an unfinished run", "refused")
            continue
        found = fingerprints.of_run(victim)
        if "journal" in fault:  # a log: its damage is said, and what is learned is untouched
            assert [said for said in listener.said if "journal" in said], fault
            found["journal"] = expected["journal"]
        elif NEWEST in fault and "missing" not in fault:
            assert [said for said in listener.said if "trying the one before" in said], fault
        assert found == expected, fault
        remark = "recovered, and said" if listener.said else "harmless"
        counts.survived("corruption of an unfinished run", remark)
