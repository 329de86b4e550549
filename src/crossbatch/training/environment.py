"""What a run's numbers may depend on besides the code and the data."""

from __future__ import annotations

import platform
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Versions, machine and threads."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
