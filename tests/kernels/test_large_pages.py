"""Large pages are a wish: whatever the system does with it, the numbers stay."""

import re
import sys
from pathlib import Path

import pytest
import torch

from crossbatch.kernels import large_pages

CHOICE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_kilobytes():
    return sum(
        map(int, re.findall(r"AnonHugePages:\s+(\d+)", Path("/proc/self/smaps").read_text()))
    )


@pytest.mark.parametrize("rows", [3, 200_000])
def test_a_tensor_is_returned_as_it_was_given(rows):
    given = torch.empty(rows, 64)
    found = large_pages.on_large_pages(given)
    assert found is given
    found.fill_(2.0)
    assert float(found.sum()) == 2.0 * rows * 64


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted in /proc")
@pytest.mark.skipif(
    not CHOICE.exists() or "[never]" in CHOICE.read_text(), reason="this system has no large pages"
)
def test_the_system_is_asked():
    before = huge_kilobytes()
    table = large_pages.on_large_pages(torch.empty(1_000_000, 64)).zero_()
    assert huge_kilobytes() > before
    assert not table.any()


def test_a_system_without_them_is_left_alone(monkeypatch):
    monkeypatch.setattr(large_pages, "ADVICE", None)
    table = torch.empty(200_000, 64)
    assert large_pages.on_large_pages(table) is table
