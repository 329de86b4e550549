"""The machine: cores and threads, memory, GPU, disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from crossbatch.health.finding import Finding, note, ok, problem

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30
LEAST_DISK, LEAST_MEMORY = GIB, GIB // 2
THREADS = "OMP_NUM_THREADS"


def processors(_: Path) -> Iterator[Finding]:
    """Cores that this process may use, and the threads that torch starts on them."""
    import torch

    cores = usable_cores()
    yield ok("cores", f"{cores} usable of {os.cpu_count()}; torch uses {torch.get_num_threads()}")
    told = os.environ.get(THREADS, "")
    if told.isdigit() and int(told) > cores:
        yield problem(
            "threads",
            f"{THREADS} is {told}, so threads wait for each other on {cores} cores",
            f"unset {THREADS}, or set it to at most {cores}",
        )


def usable_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that the system grants: the affinity mask, and a container's quota."""
    asked = getattr(os, "sched_getaffinity", None)
    cores = len(asked(0)) if asked else os.cpu_count() or 1
    try:
        quota, period = limit.read_text().split()
        return min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or a quota of "max"
        return cores


def memory(_: Path, table: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    """Memory that is free for use."""
    try:
        lines = dict(line.split(":", 1) for line in table.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        yield note("memory", "cannot be told on this system")
        return
    if free < LEAST_MEMORY:
        remedy = "end other programs, or lower model.dim and train.batch_size"
        yield problem("memory", f"{free / GIB:.1f} GiB left", remedy)
    else:
        yield ok("memory", f"{free / GIB:.1f} GiB left")


def gpu(_: Path) -> Iterator[Finding]:
    """The GPUs that torch can use."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield ok("gpu", ", ".join(names))
    elif torch.version.cuda:
        yield note(
            "gpu",
            f"torch was built for CUDA {torch.version.cuda}, but sees no GPU",
            "check the driver with nvidia-smi; without a GPU, torch's CPU build is smaller",
        )
    else:
        yield ok("gpu", "none; training uses the processor")


def disk(folder: Path) -> Iterator[Finding]:
    """Room on the disk that holds a folder."""
    place = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if place is None:
        return
    free = shutil.disk_usage(place).free
    if free < LEAST_DISK:
        remedy = f"make room on the disk of {place}, or write to another one"
        yield problem("disk", f"{free / GIB:.1f} GiB left for {folder}", remedy)
    else:
        yield ok("disk", f"{free / GIB:.1f} GiB left for {folder}")
