"""Two processes whose batches are joined by the loss, against one process with the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from . import gathering_ranks as ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no distributed package"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(Path(ranks.__file__)), str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    workers = [
        subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        errors = [worker.communicate(timeout=1800)[1].decode() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "".join(errors)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", [*ranks.CASES, "cached"])
def test_two_processes_are_one(found, case):
    """Losses, gradients of all steps, and the banks; shares are of different sizes."""
    name = "symmetric" if case == "cached" else case
    whole = ranks.steps(name, ranks.Towers(), ranks.loss_of(name), lambda _: slice(None))
    steps, per_step = len(ranks.SIZES), 5  # the loss, then weights and biases of both towers
    first, second = (each[case] for each in found)
    assert len(whole) == len(first) == steps * per_step + 3
    for place, expected in enumerate(whole):
        mine = (first[place], second[place])
        if place < steps * per_step and place % per_step == 0:
            torch.testing.assert_close((mine[0] + mine[1]) / 2, expected)
        else:
            torch.testing.assert_close(mine[0], expected)
            assert torch.equal(mine[0], mine[1])
