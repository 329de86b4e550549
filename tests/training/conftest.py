from collections.abc import Iterator
from pathlib import Path

import pytest

from crossbatch.config import Recipe
from crossbatch.data import Dataset
from crossbatch.kernels import switched_off

from ..tiny_runs import tiny_dataset, tiny_recipe


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return tiny_dataset(tmp_path_factory.mktemp("data") / "tiny")


# A run of seconds: 60 steps, an evaluation every 20, a bank that is read from step 20 on.
RECIPE = tiny_recipe(
    {"name": "cross_batch", "capacity": 70, "warmup_steps": 20},
    train={"sample_by": "user", "max_steps": 60, "eval_every": 20, "log_every": 5, "lr": 0.01},
    history="id",
)


@pytest.fixture(params=["torch", "numba"])
def with_and_without_numba(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test holds for compiled operations and for their definitions in torch."""
    if request.param == "numba":
        pytest.importorskip("numba")
        yield
    else:
        with switched_off():
            yield


@pytest.fixture
def recipe() -> Recipe:
    return RECIPE


def recipe_file(path: Path, recipe: Recipe) -> Path:
    """Write a recipe as TOML; enough of TOML for the recipes of these tests."""
    lines = []
    document = recipe.to_dict()
    for section in ("model", "sampler", "loss", "train"):
        lines.append(f"[{section}]")
        for key, value in document[section].items():
            if isinstance(value, dict):
                continue
            if isinstance(value, bool):
                text = str(value).lower()
            elif isinstance(value, (tuple, list)):
                text = str(list(value))
            else:
                text = repr(value)
            lines.append(f"{key} = {text}")
    path.write_text("\n".join(lines))
    return path
