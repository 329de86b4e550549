"""A step in chunks moves the weights as the step of the whole batch does."""

import pytest
import torch

from bank_map import RULES, TOWERS, CachedStep, recipe_of
from crossbatch.training.build import build_trainer, draw_batches, resolve

from ..tiny_runs import tiny_dataset, tiny_recipe


@pytest.mark.parametrize("chunk_size", [1, 5, 32, 64])
def test_chunks_have_the_gradients_of_the_whole_batch(tmp_path, chunk_size):
    dataset = tiny_dataset(tmp_path / "data")
    train = {"max_steps": 6, "lr": 0.01}
    # Unit vectors: among others the item layer's bias has a gradient of zero, whose rounding Adam
    # would turn into steps of full length.
    towers = {"history": "content", "user_features": [], "normalize": True}
    recipe = resolve(tiny_recipe({"name": "in_batch"}, train=train, **towers), dataset)
    whole, parts = build_trainer(recipe, dataset), build_trainer(recipe, dataset)
    step = CachedStep(parts, chunk_size)
    for batch, _ in zip(draw_batches(recipe.train, dataset), range(6), strict=False):
        loss = step(batch)
        assert float(loss) == pytest.approx(float(whole.train_step(batch).loss), rel=1e-5)
    assert parts.step == whole.step == 6
    for trainer in (whole, parts):
        trainer.optimizer.flush()
    found = dict(parts.model.named_parameters())
    for name, weight in whole.model.named_parameters():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5, msg=name)


def cell(tower, rule, size):
    known = {"tower": tower, "dim": 256, "samples": 6400, "batch": 32, "rule": rule}
    return known | {"size": size, "lr": 0.002, "seed": 0}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_recipe(rule):
    recipe = recipe_of(cell("title transformer", rule, 256))
    assert recipe.train.max_steps == 200
    assert recipe.train.lr_of == {}
    bank = rule in ("balanced", "deferred", "as published")
    assert recipe.sampler.get("capacity") == (256 if bank else None)


def test_pretrained_weights_have_a_rate_of_their_own():
    train = recipe_of(cell("MiniLM", "in-batch", 0)).train
    assert train.lr_of == {"item_tower.encoder": pytest.approx(0.0001)}
    assert (train.warmup_steps, train.clip_norm) == (20, 1.0)
    frozen = recipe_of(cell("MiniLM, frozen", "in-batch", 0))
    assert frozen.train.lr_of == {}
    assert TOWERS["MiniLM, frozen"]["item"]["frozen_layers"] == -1
