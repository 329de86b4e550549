"""Virtual environments of the peers: one each, versions pinned, created at first use."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
REQUIREMENTS = ROOT / "benchmarks" / "peers"


def peer_python(name: str, folder: Path = ROOT) -> Path:
    """The interpreter of `.venv-bench-{name}` in `folder`, with `requirements-{name}.txt` in it.

    The environment is made anew when the list has changed. Further arguments of pip, such as
    another index for torch, come from the variable `PIP_ARGS`.
    """
    home = folder / f".venv-bench-{name}"
    requirements = REQUIREMENTS / f"requirements-{name}.txt"
    python, ready = home / "bin" / "python", home / "ready"
    wanted = requirements.read_text()
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {requirements.name} into {home} …", flush=True)
        venv.create(home, with_pip=True, clear=True)
        # --no-deps: the list is complete, and nothing may bring another torch
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
        more = os.environ.get("PIP_ARGS", "").split()
        subprocess.run([*command, *more, "-r", str(requirements)], check=True)
        ready.write_text(wanted)
    return python
