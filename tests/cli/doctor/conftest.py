"""A dataset, a finished run, a killed run and a bundle; tests damage copies of them."""

import shutil

import pytest

from crossbatch.config import Recipe
from crossbatch.data import PrepareOptions, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.serving import export_bundle
from crossbatch.training import fit

RECIPE = Recipe.from_dict(
    {
        "model": {"name": "youtube_dnn", "dim": 8, "normalize": False, "history_dropout": 0.0},
        "sampler": {"name": "cross_batch", "capacity": 64, "warmup_steps": 10},
        "loss": {"temperature": 1.0},
        "train": {
            "sample_by": "user",
            "schedule": "constant",
            "adam": "dense",
            "lr": 0.001,
            "batch_size": 32,
            "max_steps": 30,
            "eval_every": 10,
            "log_every": 5,
            "threads": 1,
            "device": "cpu",
        },
    }
)


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
    options = SynthOptions(users=300, items=150, interactions=5000, seed=3)
    prepare(synthetic_source(options), folder / "data", PrepareOptions())
    dataset = open_dataset(folder / "data")
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
