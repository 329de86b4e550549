"""A user tower as users of the library write them; the kills name it by its import path."""

from torch import nn


class MeanLayer(nn.Module):
    """The mean of a history through one layer."""

    def __init__(self, dim):
        super().__init__()
        self.layer = nn.Linear(dim, dim)

    def forward(self, history):
        return self.layer(history.mean())
