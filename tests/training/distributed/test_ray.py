"""The example for Ray Train, on a real local Ray of two workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossbatch.training import fit

from ..conftest import recipe_file
from .launching import HANGS, SOURCE
from .test_runs import RECIPE, losses, result

pytest.importorskip("ray.train")

EXAMPLE = Path(__file__).parents[3] / "examples" / "cluster" / "ray_train.py"


@pytest.mark.slow
def test_workers_of_ray_make_the_run_of_one_process(dataset, tmp_path):
    file, out = recipe_file(tmp_path / "recipe.toml", RECIPE), tmp_path / "run"
    settings = {
        "PYTHONPATH": SOURCE,
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path),  # where Ray keeps its results
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        # Nothing here depends on the speed of the machine.
        "RAY_worker_niceness": "0",
        "RAY_worker_register_timeout_seconds": str(int(HANGS)),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(HANGS),
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(HANGS),
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(file), str(dataset.path), str(out), "2"],
        env=os.environ | settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    alone = fit(dataset, RECIPE, tmp_path / "alone")
    assert losses(out) == pytest.approx(losses(tmp_path / "alone"), rel=1e-4)
    assert result(out)["num_users"] == alone["num_users"]
