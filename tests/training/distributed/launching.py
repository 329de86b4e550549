"""Start ranks as torchrun would, without the seconds that its agent takes."""

import os
import subprocess
import sys
from pathlib import Path

from torch.distributed import TCPStore

HANGS = 1800.0  # seconds after which a test gives up: no measure of speed
SOURCE = str(Path(__file__).parents[3] / "src")


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the ranks find the store instead of making one
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": SOURCE,
    }


def launch(
    size: int, command: list[str], each: dict[int, list[str]] | None = None
) -> list[subprocess.Popen[str]]:
    """`python COMMAND…` on every rank, with further arguments for single ranks.

    As torchrun's agent does, this process keeps the store at which the ranks meet: the system
    chooses its port, and nobody can take it before they come.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        subprocess.Popen(
            [sys.executable, *command, *(each or {}).get(rank, [])],
            env=environment(rank, size, store.port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    processes[0].store = store  # type: ignore[attr-defined]  # lives as long as the ranks
    return processes


def finish(processes: list[subprocess.Popen[str]], timeout: float = HANGS) -> list[tuple[int, str]]:
    """Exit code and error output of every rank."""
    try:
        outputs = [process.communicate(timeout=timeout)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, outputs, strict=True)]


def run(size: int, command: list[str]) -> None:
    """Run to the end; every rank must succeed."""
    results = finish(launch(size, command))
    assert all(code == 0 for code, _ in results), "\n".join(text for _, text in results)
