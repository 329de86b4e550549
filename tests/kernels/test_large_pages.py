"""Large pages are a wish: whatever the system does with it, the numbers stay."""

import re
import sys
from pathlib import Path

import pytest
import torch

from crossbatch.kernels import large_pages

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
    found = large_pages.on_large_pages(given)
    assert found is given
    found.fill_(2.0)
    assert float(found.sum()) == 2.0 * rows * 64


@pytest.mark.skipif(sys.platform != "linux", reason="flags of memory are in /proc")
@pytest.mark.skipif(
    not CHOICE.exists() or "[never]" in CHOICE.read_text(), reason="this system has no large pages"
)
def test_the_system_is_asked():
    # Whether it has such pages to give depends on what else it runs.
    table = large_pages.on_large_pages(torch.empty(1_000_000, 64)).zero_()
    assert "hg" in flags_at(table.data_ptr() + table.nbytes // 2)
    assert not table.any()


def test_a_system_without_them_is_left_alone(monkeypatch):
    monkeypatch.setattr(large_pages, "ADVICE", None)
    table = torch.empty(200_000, 64)
    assert large_pages.on_large_pages(table) is table
