"""Training: the step, the loop, optimisers, checkpoints, journal, exact resume.

    from crossbatch.training import fit

Names are imported when first used: `import crossbatch.training.step` needs torch and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossbatch.training.endings import DivergedError, Interrupted
    from crossbatch.training.loop import EarlyStopping
    from crossbatch.training.optimizer import Adam
    from crossbatch.training.row_adam import RowAdam
    from crossbatch.training.run import fit
    from crossbatch.training.step import StepRecord, Trainer

_HOMES = {
    "Adam": "optimizer",
    "DivergedError": "endings",
    "EarlyStopping": "loop",
    "Interrupted": "endings",
    "RowAdam": "row_adam",
    "StepRecord": "step",
    "Trainer": "step",
    "fit": "run",
}

__all__ = [
    "Adam",
    "DivergedError",
    "EarlyStopping",
    "Interrupted",
    "RowAdam",
    "StepRecord",
    "Trainer",
    "fit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'crossbatch.training' has no attribute {name!r}")
    return getattr(import_module(f"crossbatch.training.{_HOMES[name]}"), name)
