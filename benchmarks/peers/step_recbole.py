"""RecBole's `GRU4Rec` with its BPR loss (one negative a sample) and its softmax over all items.

Ids only, 64 units, Adam over the whole table (RecBole's default). RecBole's own data pipeline
cannot take given samples: batches are indexed arrays here, which costs next to nothing.
"""

from functools import partial

import numpy as np
import torch
from recbole.data.interaction import Interaction
from recbole.model.sequential_recommender.gru4rec import GRU4Rec

from peers.recbole_gru4rec import FIELDS, Catalogue
from peers.samples import DIM, Samples
from peers.serve import Step, serve

OPTIONS = {"embedding_size": DIM, "hidden_size": DIM, "num_layers": 1, "dropout_prob": 0.3}


def prepared(samples: Samples, loss_type: str) -> Step:
    torch.manual_seed(0)
    config = FIELDS | OPTIONS | {"loss_type": loss_type}
    model = GRU4Rec(config, Catalogue(samples.num_items))
    optimizer = torch.optim.Adam(model.parameters())
    rng = np.random.default_rng(0)
    batches = samples.batches()

    def step() -> None:
        rows = next(batches)
        history = samples.history[rows]
        negatives = rng.integers(1, samples.num_items + 1, size=len(rows))
        columns = {
            "item_id_list": history,
            "item_length": (history != 0).sum(axis=1),
            "item_id": samples.items[rows],
            "neg_item_id": negatives,
        }
        batch = Interaction({name: torch.from_numpy(array) for name, array in columns.items()})
        optimizer.zero_grad()
        model.calculate_loss(batch).backward()
        optimizer.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    samples = Samples.from_command_line()
    rows = {
        "RecBole GRU4Rec, BPR": partial(prepared, samples, "BPR"),
        "RecBole GRU4Rec, all items": partial(prepared, samples, "CE"),
    }
    serve(rows, ("recbole", "torch", "numpy"))


if __name__ == "__main__":
    main()
