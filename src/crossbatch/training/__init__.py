"""Training: the loop, row-wise Adam, early stopping, checkpoints, journal, exact resume."""

from crossbatch.training.endings import DivergedError, Interrupted
from crossbatch.training.optimizer import Adam
from crossbatch.training.row_adam import RowAdam
from crossbatch.training.run import fit
from crossbatch.training.trainer import EarlyStopping, StepRecord, Trainer

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
