"""RecBole's `GRU4Rec`, its model and its loss (softmax over all items), on our samples.

RecBole's own `Config`, data pipeline and trainer are left out: they cannot take a given stream of
samples. What they would add is Adam and the values below, which are RecBole's defaults
(`properties/model/GRU4Rec.yaml`).
"""

import numpy as np
import torch
from recbole.data.interaction import Interaction
from recbole.model.sequential_recommender.gru4rec import GRU4Rec

from peers.exchange import BATCH_SIZE, Task

OPTIONS = {
    "embedding_size": 64,
    "hidden_size": 128,
    "num_layers": 1,
    "dropout_prob": 0.3,
    "loss_type": "CE",
}
FIELDS = {
    "USER_ID_FIELD": "user_id",
    "ITEM_ID_FIELD": "item_id",
    "LIST_SUFFIX": "_list",
    "ITEM_LIST_LENGTH_FIELD": "item_length",
    "NEG_PREFIX": "neg_",
    "MAX_ITEM_LIST_LENGTH": 20,
    "device": "cpu",
}


class Catalogue:
    """Stands for RecBole's dataset, of which the model only needs the number of items."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def num(self, field: str) -> int:
        """Rows of a table over `field`."""
        return self.num_items + 1  # RecBole's 0 is padding too


def interaction(history: np.ndarray, positives: np.ndarray | None = None) -> Interaction:
    columns = {
        "item_id_list": torch.from_numpy(history),
        "item_length": torch.from_numpy((history != 0).sum(axis=1)),
    }
    if positives is not None:
        columns["item_id"] = torch.from_numpy(positives)
    return Interaction(columns)


def main() -> None:
    task = Task.from_command_line()
    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    model = GRU4Rec(FIELDS | OPTIONS, Catalogue(task.num_items))
    optimizer = torch.optim.Adam(model.parameters(), lr=task.lr)  # RecBole's default learner

    def step(history: np.ndarray, positives: np.ndarray) -> None:
        model.train()
        optimizer.zero_grad()
        model.calculate_loss(interaction(history, positives)).backward()
        optimizer.step()

    @torch.no_grad()
    def users(history: np.ndarray) -> np.ndarray:
        model.eval()
        batch = interaction(history)
        vectors: torch.Tensor = model.forward(batch["item_id_list"], batch["item_length"])
        return vectors.numpy()

    task.train(
        step,
        users,
        lambda: model.item_embedding.weight.detach().numpy(),
        packages=("recbole", "torch", "numpy"),
        options=OPTIONS | {"batch_size": BATCH_SIZE},
    )


if __name__ == "__main__":
    main()
