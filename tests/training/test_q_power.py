"""`loss.q_power`: how much of the popularity the softmax corrects for."""

import math

import pytest
import torch

from crossbatch.config import Recipe
from crossbatch.errors import ConfigError
from crossbatch.queries import feature_rows
from crossbatch.training.build import build_sampler, build_trainer, resolve

SAMPLERS = ("in_batch", "cross_batch")


def recipe(**sections):
    return Recipe.from_dict(
        {"model": {"name": "recent_items"}, "sampler": {"name": "in_batch"}} | sections
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("power", [0.25, 0.8, 1.0])
def test_log_q_is_scaled_but_for_a_constant(dataset, sampler, power):
    """Differences of log q between items are all that a softmax sees."""
    asked = recipe(loss={"q_power": power}, sampler={"name": sampler})
    law = dataset.sampling_law(1, "interaction", 0.0)
    items = [item for item in range(1, dataset.num_items + 1) if law[item] > 0][:7]
    found = build_sampler(resolve(asked, dataset), dataset).log_q(torch.tensor(items)).tolist()
    wanted = [power * math.log(law[item]) for item in items]
    for i in range(1, len(items)):
        assert found[i] - found[0] == pytest.approx(wanted[i] - wanted[0], abs=1e-5)


def test_the_loss_is_that_of_scaled_log_q(dataset):
    """A batch's loss against a softmax that is written out in float64."""
    asked = resolve(
        recipe(
            loss={"q_power": 0.5}, model={"name": "youtube_dnn", "dim": 8, "history_dropout": 0.0}
        ),
        dataset,
    )
    trainer = build_trainer(asked, dataset)
    batch = next(dataset.batches(16, seed=3, history_length=5))
    loss = trainer.forward(batch)[-1].detach()
    model, law = trainer.model, dataset.sampling_law(1, "interaction", 0.0)
    with torch.no_grad():
        u = model.users(batch.history, *feature_rows(model, batch)).squeeze(1).double()
        v = model.items(batch.item_ids).double()
    scores = u @ v.T / asked.loss.temperature
    scores -= 0.5 * torch.tensor([math.log(law[item]) for item in batch.item_ids.tolist()])
    same = batch.item_ids[:, None] == batch.item_ids
    same.fill_diagonal_(fill_value=False)
    wanted = torch.logsumexp(scores.masked_fill(same, -math.inf), dim=1) - scores.diagonal()
    assert loss.item() == pytest.approx(float(wanted.mean()), abs=1e-4)


def test_a_learned_q_has_no_power(dataset):
    asked = recipe(loss={"q_power": 0.5}, sampler={"name": "in_batch", "streaming_q": True})
    with pytest.raises(ConfigError, match=r"loss\.q_power is 0\.5, but sampler\.streaming_q"):
        build_sampler(resolve(asked, dataset), dataset)


@pytest.mark.parametrize("power", [-0.1, 0, 1.1, math.nan])
def test_bad_powers_are_refused(power):
    with pytest.raises(ConfigError, match=r"loss\.q_power must be above 0 and at most 1, got"):
        recipe(loss={"q_power": power})
