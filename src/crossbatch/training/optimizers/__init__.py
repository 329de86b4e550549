"""Optimisers: Adam and Adagrad over table rows at the cost of the rows read, AdamW for the rest.

For example:

    optimizer = Adam(model, lr=0.001)
    loss.backward()
    optimizer.step()                  # also clears the gradients
"""

from crossbatch.training.optimizers.adam import Adam
from crossbatch.training.optimizers.row_adagrad import RowAdagrad
from crossbatch.training.optimizers.row_adam import RowAdam
from crossbatch.training.optimizers.schedules import SCHEDULES

__all__ = ["SCHEDULES", "Adam", "RowAdagrad", "RowAdam"]
