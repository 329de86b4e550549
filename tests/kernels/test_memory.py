"""Large pages are a wish, and the numbers stay the same. Freed memory is kept."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crossbatch.kernels import memory

CHOICE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_at(address):
    """The kernel's flags of the memory at an address; "hg" was advised to have large pages."""
    mapping = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags: ([^\n]*)", re.M | re.S)
    for start, stop, flags in mapping.findall(Path("/proc/self/smaps").read_text()):
        if int(start, 16) <= address < int(stop, 16):
            return flags.split()
    return []


@pytest.mark.parametrize("rows", [3, 200_000])
def test_a_tensor_is_returned_as_it_was_given(rows):
    given = torch.empty(rows, 64)
    found = memory.on_large_pages(given)
    assert found is given
    found.fill_(2.0)
    assert float(found.sum()) == 2.0 * rows * 64


@pytest.mark.skipif(sys.platform != "linux", reason="flags of memory are in /proc")
@pytest.mark.skipif(
    not CHOICE.exists() or "[never]" in CHOICE.read_text(), reason="this system has no large pages"
)
def test_the_system_is_asked():
    # Whether it has such pages to give depends on what else it runs.
    table = memory.on_large_pages(torch.empty(1_000_000, 64)).zero_()
    assert "hg" in flags_at(table.data_ptr() + table.nbytes // 2)
    assert not table.any()


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (200_000, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_like_another_tensor(shape, dtype):
    found = memory.zeros_on_large_pages(torch.ones(shape, dtype=dtype))
    assert (found.shape, found.dtype) == (torch.Size(shape), dtype)
    assert not found.any()
    found += 1
    assert bool((found.clone() == 1).all())


def test_a_system_without_them_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "ADVICE", None)
    table = torch.empty(200_000, 64)
    assert memory.on_large_pages(table) is table


# Page faults of tensors of 64 MB that are made, filled and freed, once the first three were.
FAULTS = """
import resource
import torch
from crossbatch.kernels.memory import keep_freed_memory

print(keep_freed_memory())
for turn in range(8):
    if turn == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(1 << 24).fill_(1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def kept_and_faults(monkeypatch, **variables):
    for name in memory.CHOSEN_BY_USER:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True
    )
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


def test_freed_memory_is_used_again(monkeypatch):
    kept, faults = kept_and_faults(monkeypatch)
    if not kept:
        pytest.skip("this system's C library has no such limits")
    # Five tensors in new memory are 160 faults of large pages, 80,000 of small ones.
    assert faults < 100


def test_limits_that_the_user_chose_stay(monkeypatch):
    kept, _ = kept_and_faults(monkeypatch, MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept
