"""A dataset, a finished run, a killed run and a bundle; tests damage copies of them."""

import shutil

import pytest

from crossbatch.cli.doctor import environment
from crossbatch.serving import export_bundle
from crossbatch.training import fit

from ...tiny_runs import tiny_dataset, tiny_recipe

RECIPE = tiny_recipe(
    {"name": "cross_batch", "capacity": 64, "warmup_steps": 10},
    train={"sample_by": "user", "lr": 0.001, "max_steps": 30, "eval_every": 10, "log_every": 5},
)


@pytest.fixture(autouse=True)
def a_machine_with_room(monkeypatch):
    """What other programs leave of memory and disk, and how many threads are set, is no finding."""
    monkeypatch.setattr(environment, "MIN_MEMORY", 0)
    monkeypatch.setattr(environment, "MIN_DISK", 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


class KilledError(Exception):
    """Ends a run as a kill would."""


def killed_at(last):
    def probe(_trainer, step):
        if step == last:
            raise KilledError

    return probe


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    dataset = tiny_dataset(folder / "data", 300, 150, 5000)
    fit(dataset, RECIPE, folder / "run")
    with pytest.raises(KilledError):
        fit(dataset, RECIPE, folder / "killed", probe=killed_at(25))
    export_bundle(folder / "run", folder / "bundle")
    return folder


@pytest.fixture
def damaged(workplace, tmp_path):
    """A copy of one of the folders, to be damaged."""

    def copy(name):
        shutil.copytree(workplace / name, tmp_path / name)
        return tmp_path / name

    return copy
