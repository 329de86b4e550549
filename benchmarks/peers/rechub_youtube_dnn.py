"""torch-rechub's `YoutubeDNN` with its list-wise softmax and its trainer's step, on our samples.

As in its MovieLens example: negatives by word2vec's rule (count^0.75), cosine over temperature
0.02, weight decay 1e-6. Unlike there: 127 negatives per sample, as many as a batch of 128 gives,
instead of 3; drawn anew for every step instead of once; padding masked.
"""

import numpy as np
import torch
from torch_rechub.basic.features import SequenceFeature, SparseFeature
from torch_rechub.models.matching import YoutubeDNN
from torch_rechub.trainers import MatchTrainer

from peers.exchange import BATCH_SIZE, Task

DIM = 64
NEGATIVES = BATCH_SIZE - 1
OPTIONS = {"dims": [128, DIM], "temperature": 0.02, "weight_decay": 1e-6, "negatives": NEGATIVES}


def build(num_items: int) -> YoutubeDNN:
    rows = num_items + 1
    history = SequenceFeature(
        "history", rows, embed_dim=DIM, pooling="mean", shared_with="item", padding_idx=0
    )
    negatives = SequenceFeature(
        "negatives", rows, embed_dim=DIM, pooling="concat", shared_with="item"
    )
    item = SparseFeature("item", rows, embed_dim=DIM, padding_idx=0)
    return YoutubeDNN(
        [history],
        [item],
        [negatives],
        user_params={"dims": OPTIONS["dims"]},
        temperature=OPTIONS["temperature"],
    )


def main() -> None:
    task = Task.from_command_line()
    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    rng = np.random.default_rng(task.seed)
    weights = task.load("item_counts").astype(np.float64) ** 0.75
    cumulative = np.cumsum(weights / weights.sum())
    model = build(task.num_items)
    trainer = MatchTrainer(
        model, mode=2, optimizer_params={"lr": task.lr, "weight_decay": OPTIONS["weight_decay"]}
    )
    first = torch.zeros(BATCH_SIZE, dtype=torch.long)  # the positive is the first candidate

    def step(history: np.ndarray, positives: np.ndarray) -> None:
        draws = np.searchsorted(cumulative, rng.random((BATCH_SIZE, NEGATIVES)), side="right")
        batch = {
            "history": torch.from_numpy(history),
            "item": torch.from_numpy(positives),
            "negatives": torch.from_numpy(np.minimum(draws, task.num_items)),
        }
        model.train()
        loss = trainer.criterion(model(batch), first)
        model.zero_grad()
        loss.backward()
        trainer.optimizer.step()

    @torch.no_grad()
    def users(history: np.ndarray) -> np.ndarray:
        model.eval()
        model.mode = "user"
        vectors: np.ndarray = model({"history": torch.from_numpy(history)}).numpy()
        model.mode = None
        return vectors

    @torch.no_grad()
    def items() -> np.ndarray:
        model.eval()
        model.mode = "item"
        vectors: np.ndarray = model({"item": torch.arange(task.num_items + 1)}).numpy()
        model.mode = None
        return vectors

    task.train(step, users, items, packages=("torch-rechub", "torch", "numpy"), options=OPTIONS)


if __name__ == "__main__":
    main()
