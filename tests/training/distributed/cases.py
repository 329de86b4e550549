"""What one process and several must agree on; run by `worker.py` and by the tests themselves."""

from typing import Any

import torch

from crossbatch.config import PAPER, Recipe
from crossbatch.data import Dataset
from crossbatch.evaluation.evaluator import ItemShards
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.kernels.row_gradients import sum_gradients
from crossbatch.retrieval import ExactIndex, TopK
from crossbatch.training.build import build_trainer, resolve
from crossbatch.training.distributed.ranks import Ranks

BANK = {"name": "cross_batch", "capacity": 70, "warmup_steps": 1}
BALANCED = BANK | {"item_gradient": "balanced"}

# Recipes whose draws do not depend on the number of processes. 31 rows divide by neither 2 nor 3.
CASES: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": {"name": "uniform", "num_negatives": 50}},
    "in_batch": {"sampler": {"name": "in_batch"}},
    "mixed": {"sampler": {"name": "mixed", "num_uniform": 41}},
    "cross_batch": {"sampler": BANK},
    "balanced": {"sampler": BALANCED, "train": {"batch_size": 31}},
    "everything": {
        "model": {
            "history": "item_tower",
            "normalize": True,
            "history_dropout": 0.3,
            "item": {"hidden": [16]},
        },
        "sampler": BALANCED,
        "loss": {
            "temperature": 0.2,
            "learn_temperature": True,
            "mask": "none",
            "mask_history": True,
            "mask_later": True,
            "l2": 0.01,
            "chunk_size": 17,
        },
        "train": {"batch_size": 31, "adam": "lazy", "accumulate": 2, "weight_decay": 0.01},
    },
    "gru4rec": {"model": {"name": "gru4rec"}, "sampler": BALANCED, "train": {"batch_size": 31}},
    "mind": {
        "model": {"name": "mind", "tower": {"routing": "fixed"}},
        "sampler": BANK,
        "loss": {"mask": "none"},
    },
}
EVALUATED = ("balanced", "everything")
STEPS = 8
BATCHES = (30, 31)  # whose bytes are counted
CATALOGUES = (2, 5, 50, 1000)


def recipe_of(case: str) -> Recipe:
    document = Recipe().to_dict()
    document["model"] |= {"name": "youtube_dnn", "dim": 8, "history": "id", "normalize": False}
    document["model"]["history_dropout"] = 0.0
    document["loss"]["temperature"] = 1.0
    document["train"] |= {"schedule": "constant", "adam": "dense", "max_steps": 1_000_000}
    document["train"] |= {"batch_size": 32, "lr": 0.003, "eval_every": 10, "device": "cpu"}
    for section, content in CASES[case].items():
        document[section] = content if section == "sampler" else document[section] | content
    return Recipe.from_dict(document)


def outcome(dataset: Dataset, case: str, ranks: Ranks | None) -> dict[str, Any]:
    """Gradients of the first batch, then losses, weights and bank after a few steps."""
    recipe = resolve(recipe_of(case), dataset)
    trainer = build_trainer(recipe, dataset, ranks=ranks)
    # The gradient of an item tower's last bias is rounding alone: the columns' gradients of a row
    # add up to zero. An ε of 1e-8 would make steps of full size of it.
    for part in (*trainer.optimizer.dense, *trainer.optimizer.tables.values()):
        part.eps = 1e-2
    found: dict[str, Any] = {"gradients": gradients(trainer, dataset, recipe, ranks)}
    batches = dataset.batches(recipe.train.batch_size, seed=0, later=True)
    records = [trainer.train_step(next(batches)) for _ in range(STEPS)]
    trainer.optimizer.flush()
    last = records[-1]
    found["losses"] = torch.stack([record.loss for record in records])
    found["weights"] = dict(trainer.model.state_dict()) | {"t": trainer.log_temperature.detach()}
    found["sampler"] = dict(trainer.sampler.state_dict())
    found["optimizer"] = trainer.optimizer.state()
    found["users"] = trainer.whole(last.users)
    found["columns"] = last.negatives.item_ids
    found["random"] = torch.rand(3)  # the state of the generator
    if case in EVALUATED:
        evaluation = RunEvaluator(dataset, recipe, ranks).validate(trainer.model)
        unseen = {f"unseen_{key}": value for key, value in evaluation.unseen.means().items()}
        found["metrics"] = evaluation.means() | unseen
    return found


def counted_bytes(dataset: Dataset, ranks: Ranks, batch_size: int) -> float:
    """Bytes that this rank receives in a step, counted message by message."""
    document = {
        "model": PAPER["model"] | {"dim": 8},
        "sampler": BANK,
        "train": {"batch_size": batch_size, "device": "cpu"},
    }
    trainer = build_trainer(resolve(Recipe.from_dict(document), dataset), dataset, ranks=ranks)
    counted = 0.0
    others = ranks.size - 1
    received = {  # in a ring, of the message's argument
        "all_gather": lambda lists, own: others * own.nbytes,
        "all_to_all_single": lambda arriving, pieces: others / ranks.size * pieces.nbytes,
        "all_reduce": lambda tensor: 2 * others / ranks.size * tensor.nbytes,
    }

    def counting(name: str, send: Any) -> Any:
        def counted_send(*arguments: Any, **options: Any) -> Any:
            nonlocal counted
            counted += received[name](*arguments)
            return send(*arguments, **options)

        return counted_send

    originals = {name: getattr(torch.distributed, name) for name in received}
    for name, send in originals.items():
        setattr(torch.distributed, name, counting(name, send))
    batch = next(dataset.batches(batch_size, seed=0))
    # Full histories and distinct items, as the formula assumes.
    batch.history.clamp_(min=1)
    batch.item_ids.copy_(torch.arange(1, batch_size + 1))
    trainer.train_step(batch)
    for name, send in originals.items():
        setattr(torch.distributed, name, send)
    return counted


def searched(ranks: Ranks | None, num_items: int) -> TopK:
    """Lists over vectors of small integers: many scores are equal, and all are exact."""
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randint(-2, 3, (num_items + 1, 4), generator=generator).float()
    interests = torch.randint(-2, 3, (6, 2, 4), generator=generator).float()
    exclude = torch.randint(0, num_items + 1, (6, 3), generator=generator)
    if ranks is None:
        return ExactIndex(vectors).search(interests, 7, exclude=exclude)
    own = ranks.share(num_items)
    shard = torch.cat([vectors[:1], vectors[1:][own]])
    index = ItemShards(ranks, shard, own.start + 1)
    return index.search(interests, 7, exclude=exclude)


def gradients(trainer, dataset, recipe, ranks) -> dict[str, torch.Tensor]:
    """What an optimiser would be given for the first batch; nothing is learned from it."""
    state = torch.get_rng_state()
    batch = next(dataset.batches(recipe.train.batch_size, seed=1, later=True))
    trainer.step = trainer.accumulate - 1  # the last batch before an update
    u, positives, _, loss = trainer.forward(batch)
    trainer.backward(u, positives, loss)
    trainer.step = 0
    optimizer = trainer.optimizer
    if ranks is not None:
        trainer.add_up()
    found = {
        f"dense.{i}": parameter.grad.clone()
        for i, parameter in enumerate(optimizer.parameters())
        if parameter.grad is not None
    }
    for name, table in optimizer.tables.items():
        reads = [read for read in table.reads if read.gradient is not None]
        found[f"rows.{name}"], found[f"sums.{name}"] = sum_gradients(reads, 0)
    optimizer.forget()
    torch.set_rng_state(state)
    return found
