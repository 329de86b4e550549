"""Checks of the environment: installed packages, processors, memory, GPU, disk."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import TYPE_CHECKING

from crossbatch.cli.doctor.findings import Finding, note, ok, problem
from crossbatch.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.requirements import Requirement

# Compiled packages may be installed and yet fail to load, so they are imported.
COMPILED = {name: name for name in ("torch", "numba", "numpy", "polars", "safetensors")}
ACCELERATORS = {"faiss-cpu": "faiss"}
GIB = 1 << 30
MIN_DISK, MIN_MEMORY = GIB, GIB // 2
THREADS = "OMP_NUM_THREADS"


def requirements(extra: str = "") -> list[Requirement]:
    """Return what the installed crossbatch, or one of its extras, needs on this platform."""
    from packaging.requirements import Requirement

    found = []
    for text in metadata("crossbatch").get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        applies = marker is None or marker.evaluate({"extra": extra})
        if applies and always == (not extra):
            found.append(requirement)
    return found


def required_packages(_: Path) -> Iterator[Finding]:
    """Check Python, crossbatch and its required packages."""
    from packaging.specifiers import SpecifierSet

    python, supported = platform.python_version(), metadata("crossbatch")["Requires-Python"]
    if SpecifierSet(supported).contains(python, prereleases=True):
        yield ok("python", f"{python} (supported: {supported})")
    else:
        yield problem("python", f"{python} is not {supported}", f"use Python {supported}")
    yield ok("crossbatch", version("crossbatch"))
    for requirement in requirements():
        yield _package(requirement, "crossbatch")


def extras(_: Path) -> Iterator[Finding]:
    """Check the packages of each extra."""
    for extra in metadata("crossbatch").get_all("Provides-Extra") or []:
        if extra == "all":  # the sum of the others
            continue
        check, target = f"extra {extra}", f"crossbatch[{extra}]"
        members = requirements(extra)
        missing = [member.name for member in members if _installed(member.name) is None]
        if missing:
            yield note(check, f"not installed: {', '.join(missing)}", f"pip install '{target}'")
            continue
        troubles = [f for f in (_package(each, target) for each in members) if f.remedy]
        yield from troubles
        if not troubles:
            yield ok(check, ", ".join(f"{m.name} {_installed(m.name)}" for m in members))


def _package(requirement: Requirement, target: str) -> Finding:
    """Check that a package is installed, in the supported range, and loads."""
    name, supported = requirement.name, requirement.specifier
    installed = _installed(name)
    if installed is None:
        return problem(name, "is not installed", f"pip install '{target}'")
    if not supported.contains(installed, prereleases=True):
        return problem(name, f"{installed} is not {supported}", f"pip install '{name}{supported}'")
    module = (COMPILED | ACCELERATORS).get(name)
    if module is not None:
        try:
            import_module(module)
        except Exception as error:  # a broken build may raise anything
            again = f"pip install --force-reinstall '{name}=={installed}'"
            return problem(name, f"{installed} does not load: {reason_of(error)}", again)
    return ok(name, f"{installed} (supported: {supported or 'any'})")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processors(_: Path) -> Iterator[Finding]:
    """Check the cores that this process may use against the threads that torch starts."""
    import torch

    cores = usable_cores()
    yield ok("cores", f"{cores} usable of {os.cpu_count()}; torch uses {torch.get_num_threads()}")
    threads = os.environ.get(THREADS, "")
    if threads.isdigit() and int(threads) > cores:
        yield problem(
            "threads",
            f"{THREADS} is {threads}, so threads wait for each other on {cores} cores",
            f"unset {THREADS}, or set it to at most {cores}",
        )


def usable_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores allowed by the affinity mask and by a container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = limit.read_text().split()
        return min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no container, or a quota of "max"
        return cores


def memory(_: Path, table: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    """Check the available memory."""
    try:
        lines = dict(line.split(":", 1) for line in table.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        yield note("memory", "cannot be measured on this system")
        return
    remedy = "end other programs, or lower model.dim and train.batch_size"
    yield _space("memory", free, MIN_MEMORY, f"{free / GIB:.1f} GiB available", remedy)


def gpu(_: Path) -> Iterator[Finding]:
    """List the GPUs that torch can use."""
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
    """Check the free space of the disk that holds a folder."""
    place = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if place is not None:
        free = shutil.disk_usage(place).free
        remedy = f"free some space on the disk of {place}, or write to another one"
        yield _space("disk", free, MIN_DISK, f"{free / GIB:.1f} GiB free for {folder}", remedy)


def _space(check: str, free: int, least: int, message: str, remedy: str) -> Finding:
    return ok(check, message) if free >= least else problem(check, message, remedy)
