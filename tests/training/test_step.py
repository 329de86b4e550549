"""The training step: every model with every sampler, masks, precision, accumulation."""

import itertools
import subprocess
import sys

import pytest
import torch

from crossbatch.config import Recipe
from crossbatch.models import MODELS
from crossbatch.negatives import SAMPLERS
from crossbatch.training.build import build_trainer, resolve

SAMPLER_OPTIONS = {
    "uniform": {"num_negatives": 50},
    "in_batch": {},
    "mixed": {"num_uniform": 40},
    "cross_batch": {"capacity": 96, "warmup_steps": 2},
}


def trainer_for(dataset, recipe, **sections):
    document = recipe.to_dict()
    for section, content in sections.items():
        document[section] = content if section == "sampler" else document[section] | content
    return build_trainer(resolve(Recipe.from_dict(document), dataset), dataset)


def losses(trainer, dataset, steps, batch_size=32, seed=0):
    batches = dataset.batches(batch_size, seed=seed)
    return [float(trainer.train_step(next(batches)).loss) for _ in range(steps)]


def test_every_sampler_has_options_here():
    assert set(SAMPLER_OPTIONS) == set(SAMPLERS)


@pytest.mark.parametrize(("model", "sampler"), list(itertools.product(MODELS, SAMPLERS)))
def test_every_model_learns_with_every_sampler(dataset, recipe, model, sampler):
    trainer = trainer_for(
        dataset,
        recipe,
        model={"name": model},
        sampler={"name": sampler} | SAMPLER_OPTIONS[sampler],
        train={"lr": 0.02},
    )
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    seen = losses(trainer, dataset, 80)
    start = 10 if sampler == "cross_batch" else 0  # a filling bank raises the loss by itself
    assert sum(seen[-10:]) < sum(seen[start : start + 10])
    trainer.optimizer.flush()
    after = trainer.model.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert any(name.startswith("item_tower") for name in moved)
    assert any(name.startswith("user_tower") for name in moved)


@pytest.mark.parametrize("model", ["youtube_dnn", "gru4rec", "mind"])
def test_capacity_zero_is_in_batch_step_for_step(dataset, recipe, model):
    plain = trainer_for(dataset, recipe, model={"name": model}, sampler={"name": "in_batch"})
    empty = trainer_for(
        dataset,
        recipe,
        model={"name": model},
        sampler={"name": "cross_batch", "capacity": 0, "warmup_steps": 0},
    )
    torch.manual_seed(5)
    first = losses(plain, dataset, 15)
    torch.manual_seed(5)
    assert first == losses(empty, dataset, 15)


def test_warm_up_is_in_batch_and_the_bank_joins_after_it(dataset, recipe):
    plain = trainer_for(dataset, recipe, sampler={"name": "in_batch"})
    banked = trainer_for(
        dataset, recipe, sampler={"name": "cross_batch", "capacity": 64, "warmup_steps": 5}
    )
    first, second = losses(plain, dataset, 8), losses(banked, dataset, 8)
    assert first[:5] == second[:5]
    assert all(a < b for a, b in zip(first[5:], second[5:], strict=True))


def test_accumulated_batches_equal_one_update_by_their_mean(dataset, recipe):
    twice = trainer_for(
        dataset, recipe, sampler={"name": "in_batch"}, train={"accumulate": 2, "adam": "lazy"}
    )
    before = twice.model.item_tower.table.weight.detach().clone()
    batches = dataset.batches(32, seed=0)
    first, second = next(batches), next(batches)
    twice.train_step(first)
    assert torch.equal(twice.model.item_tower.table.weight, before)  # no step yet
    twice.train_step(second)
    # The first Adam step moves each touched weight by lr · sign(gradient), whatever its size.
    touched = torch.cat([first.item_ids, second.item_ids, first.history[first.history > 0]])
    moved = (twice.model.item_tower.table.weight - before).abs().amax(dim=1)
    assert moved[touched.unique()].min() > 0.009
    assert moved.max() < 0.0101


def test_l2_adds_the_squared_lengths_to_the_gradient_but_not_to_the_reported_loss(dataset, recipe):
    plain = trainer_for(dataset, recipe, sampler={"name": "in_batch"})
    heavy = trainer_for(dataset, recipe, sampler={"name": "in_batch"}, loss={"l2": 10.0})
    first, second = losses(plain, dataset, 60), losses(heavy, dataset, 60)
    assert first[0] == second[0]
    batch = next(dataset.batches(32, seed=1))
    lengths = [t.train_step(batch).positives.embeddings.norm() for t in (plain, heavy)]
    assert lengths[1] < 0.2 * lengths[0]


@pytest.mark.parametrize(
    "masks", [("mask_history",), ("mask_later",), ("mask_history", "mask_later")]
)
def test_what_else_a_user_liked_is_left_out_of_the_negatives(dataset, recipe, masks):
    open_, masked = (
        trainer_for(
            dataset,
            recipe,
            sampler={"name": "uniform", "num_negatives": 10_000},  # the whole catalogue
            loss=dict.fromkeys(masks, flag),
        )
        for flag in (False, True)
    )
    batch = next(dataset.batches(32, seed=0, later=True))
    torch.manual_seed(0)
    plain = open_.train_step(batch)
    torch.manual_seed(0)
    record = masked.train_step(batch)
    # By hand from the vectors: full softmax over all items but what is masked.
    u = plain.users.double()
    table = plain.negatives.embeddings.detach().double()
    ids = plain.negatives.item_ids
    scores = u @ table.T
    own = batch.item_ids.unsqueeze(1) == ids
    ends = batch.later[1].tolist()
    later = [batch.later[0][start:end] for start, end in itertools.pairwise(ends)]
    liked = {"mask_history": list(batch.history), "mask_later": later}
    for mask in masks:
        seen = torch.stack([torch.isin(ids, items) for items in liked[mask]]) & ~own
        scores = scores.masked_fill(seen, float("-inf"))
    expected = scores.logsumexp(dim=1) - (scores * own).nan_to_num(0.0, 0.0, 0.0).sum(dim=1)
    assert float(record.loss) == pytest.approx(float(expected.mean()), rel=1e-5)
    assert float(record.loss) < float(plain.loss)


def test_masking_what_came_later_needs_to_know_it(dataset, recipe):
    trainer = trainer_for(dataset, recipe, loss={"mask_later": True})
    with pytest.raises(ValueError, match="later=True"):
        trainer.train_step(next(dataset.batches(32, seed=0)))


def test_learned_temperature_moves(dataset, recipe):
    trainer = trainer_for(
        dataset,
        recipe,
        model={"normalize": True},
        sampler={"name": "in_batch"},
        loss={"temperature": 0.5, "learn_temperature": True},
    )
    losses(trainer, dataset, 10)
    assert float(trainer.log_temperature.detach().exp()) != pytest.approx(0.5)


def test_bfloat16_autocast_stays_close_to_float32(dataset, recipe):
    runs = [
        losses(trainer_for(dataset, recipe, sampler={"name": "in_batch"}, train=extra), dataset, 20)
        for extra in ({}, {"precision": "bfloat16"})
    ]
    assert runs[0] != runs[1]
    assert runs[0] == pytest.approx(runs[1], rel=0.02)


def test_own_modules_train_without_subclassing_anything(dataset, recipe):
    class Towers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(dataset.num_items + 1, 8, padding_idx=0)

        def items(self, item_ids):
            return self.table(item_ids)

        def users(self, history, user_ids=None):
            return self.table(history).mean(dim=1, keepdim=True)

        def forward(self, history, item_ids, user_ids=None):
            return self.users(history).squeeze(1), self.items(item_ids)

    document = recipe.to_dict() | {"sampler": {"name": "in_batch"}}
    trainer = build_trainer(Recipe.from_dict(document), dataset, Towers())
    seen = losses(trainer, dataset, 300)
    assert sum(seen[-20:]) < sum(seen[:20])


def test_the_step_needs_torch_alone():
    """It is imported where none of the other dependencies can be."""
    code = (
        "import sys\n"
        "absent = 'numpy polars pyarrow safetensors rich typer numba'.split()\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "import crossbatch.training.step\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
