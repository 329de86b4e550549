"""The comparison of a device with the CPU: it passes here, and it can fail."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from .conftest import BENCHMARKS


@pytest.fixture(scope="module")
def gpu_check():
    spec = importlib.util.spec_from_file_location("gpu_check", BENCHMARKS / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_compiled_operations_agree_with_plain_torch():
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--device", "cpu", "--no-compile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all paths agree\n")
    for path in ("loss in chunks", "balanced: bank", "gru4rec", "deferred", "bfloat16", "search"):
        assert path in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "torch sees no GPU" in done.stderr


def test_a_difference_is_found(gpu_check, capsys):
    table = gpu_check.Table()
    expected = torch.tensor([4.0, -2.0])
    table.line("same", gpu_check.apart(expected.float(), expected), 1e-6)
    assert table.failed == 0
    table.line("near", gpu_check.apart(torch.tensor([4.0, -1.9]), expected), 0.03)  # 0.1 / 4
    assert table.failed == 0
    for wrong in (torch.tensor([4.0, -1.8]), torch.tensor([4.0, float("nan")]), expected[:1]):
        table.line("wrong", gpu_check.apart(wrong, expected), 0.03)
    assert table.failed == 3

    def broken(table):
        raise RuntimeError("no kernel image")

    table.run("broken", broken)
    assert table.failed == 4
    assert "raised RuntimeError: no kernel image" in capsys.readouterr().out
