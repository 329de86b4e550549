"""Training: the step, the loop, optimisers, checkpoints, journal, exact resume.

    from crossbatch.training import fit

Names are imported when first used: `import crossbatch.training.step` needs torch and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossbatch.errors import DivergedError, Interrupted
    from crossbatch.fitting import fit
    from crossbatch.training.loop import EarlyStopping
    from crossbatch.training.optimizers import Adam, RowAdam
    from crossbatch.training.step import StepRecord, Trainer

_HOMES = {
    "Adam": "crossbatch.training.optimizers",
    "DivergedError": "crossbatch.errors",
    "EarlyStopping": "crossbatch.training.loop",
    "Interrupted": "crossbatch.errors",
    "RowAdam": "crossbatch.training.optimizers",
    "StepRecord": "crossbatch.training.step",
    "Trainer": "crossbatch.training.step",
    "fit": "crossbatch.fitting",  # joins training and evaluation, so it stands above both
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
    return getattr(import_module(_HOMES[name]), name)
