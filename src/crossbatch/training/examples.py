"""A few test users with their history, what they chose next and what the model would have said."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import torch

from crossbatch.evaluation import encode_items
from crossbatch.evaluation.recommenders import evaluation_mode
from crossbatch.files import write_document
from crossbatch.retrieval import ExactIndex
from crossbatch.training.assemble import pick_device

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset

NUM_USERS, NUM_RECOMMENDED, NUM_SHOWN = 5, 10, 8


@torch.no_grad()
def write_examples(path: Path, model: object, dataset: Dataset, recipe: Recipe) -> None:
    """Write `examples.json`: a list of {"history", "targets", "recommended"}, all as titles."""
    towers = cast("Any", model)
    device = pick_device(recipe.train.device)
    batch = next(
        islice(
            dataset.eval_batches(
                "test", batch_size=NUM_USERS, history_length=recipe.train.history_length
            ),
            1,
        )
    )
    with evaluation_mode(model, seed=0):
        index = ExactIndex(encode_items(towers, dataset.num_items, device=device))
        interests = towers.users(batch.history.to(device), batch.user_ids.to(device))
        top = index.search(interests.float(), NUM_RECOMMENDED, exclude=batch.history.to(device))
    examples = [
        {
            "history": dataset.item_titles(_known(history)[-NUM_SHOWN:]),
            "targets": dataset.item_titles(targets.tolist()),
            "recommended": [
                {"title": title, "score": score}
                for title, score in zip(
                    dataset.item_titles(ids.tolist()), scores.tolist(), strict=True
                )
            ],
        }
        for history, targets, ids, scores in zip(
            batch.history, batch.targets, top.item_ids, top.scores, strict=True
        )
    ]
    write_document(path, examples)


def _known(history: torch.Tensor) -> list[int]:
    return [item for item in history.tolist() if item]
