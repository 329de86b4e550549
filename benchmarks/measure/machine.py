"""Description of the machine, and probes of its speed: matrix products, memory, exponentials.

Each probe does a fixed amount of work; its CPU time gives a speed.
"""

from __future__ import annotations

import math
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from crossbatch.kernels.products import multiply

if TYPE_CHECKING:
    from collections.abc import Callable

GEMM_SIDE = 768  # three matrices of 2.4 MB: in cache, and large enough for full speed
COPY_FLOATS = 32 << 20  # 128 MB: far beyond any cache
EXP_SHAPE = (128, 2560)  # the logits of a cross-batch step
# What one call does: FLOP, bytes read and written, exponentials.
PROBES = {
    "GEMM": 2.0 * GEMM_SIDE**3,
    "best GEMM": 2.0 * GEMM_SIDE**3,  # by the faster of the two libraries inside torch
    "copy": 2.0 * 4 * COPY_FLOATS,
    "exp": float(math.prod(EXP_SHAPE)),
}


def probe(name: str) -> Callable[[], object]:
    """A function that does the work of `PROBES[name]`."""
    if name == "GEMM":
        left, right, product = (torch.randn(GEMM_SIDE, GEMM_SIDE) for _ in range(3))
        return lambda: torch.mm(left, right, out=product)
    if name == "best GEMM":
        left, right = (torch.randn(GEMM_SIDE, GEMM_SIDE) for _ in range(2))
        return lambda: multiply(left, right)
    if name == "copy":
        source, target = torch.ones(COPY_FLOATS), torch.zeros(COPY_FLOATS)
        return lambda: target.copy_(source)
    logits, exponentials = torch.randn(EXP_SHAPE), torch.empty(EXP_SHAPE)
    return lambda: torch.exp(logits, out=exponentials)


def describe(packages: tuple[str, ...] = ("torch", "numpy")) -> dict[str, str | int | float]:
    """CPU, load and versions."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.split(": ")[1] for x in lines if x.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def resident_mib(field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (peak) of this process; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def peak_growth_mib(work: Callable[[], object]) -> float:
    """By how much `work` raises the resident memory at its peak; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident_mib("VmRSS")
    work()
    return resident_mib("VmHWM") - before


def free_bytes() -> int:
    """Memory that new data can take without swapping; Linux's estimate, else all there is."""
    information = Path("/proc/meminfo")
    if not information.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = information.read_text().splitlines()
    return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
