"""`sampler = "auto"`: the rule by hand, what it measures, and what a run records of it."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

from crossbatch.errors import ConfigError, DataError
from crossbatch.negatives import Candidates, CrossBatchSampler
from crossbatch.training import auto_sampler, fit
from crossbatch.training.auto_sampler import (
    Costs,
    Facts,
    SamplerChoice,
    choose_sampler,
    decide,
    later_share,
    measure_costs,
)
from crossbatch.training.build import build_towers, build_trainer, resolve
from crossbatch.training.journal import Monitor
from crossbatch.training.progress import Progress

AUTO = {"name": "auto"}


@pytest.fixture(autouse=True)
def _whole_allowance(monkeypatch, request):
    """Rules by hand are easier to read without the margin."""
    if "margin" not in request.node.name:
        monkeypatch.setattr(auto_sampler, "MARGIN", 1.0)


def test_a_margin_of_the_allowance_is_kept():
    facts = Facts(128, 100_000, 0.001, normalized=True)
    fits = auto_sampler.MARGIN * 0.2 / 128
    assert "every" not in decide(Costs(1.0, 0.99 * fits), facts, 1.2).sampler
    assert decide(Costs(1.0, 1.01 * fits), facts, 1.2).sampler["every"] == 2


def chosen(per_uniform, num_items=100_000, budget=1.2, B=128, normalized=True):
    """The rule for an in-batch step of 1 s; other costs in seconds."""
    facts = Facts(B, num_items, 0.001, normalized)
    return decide(Costs(1.0, per_uniform), facts, budget)


def test_the_whole_catalogue_where_it_fits():
    choice = chosen(0.2 / 500.5, num_items=500)
    assert choice.sampler == {"name": "uniform", "num_negatives": 500}
    assert "full softmax" in choice.reason
    assert chosen(0.2 / 500.5, num_items=501).sampler["name"] == "mixed"


@pytest.mark.parametrize(
    ("fitting", "sampler"),
    [
        (32, {"num_uniform": 128, "every": 4}),
        (63, {"num_uniform": 128, "every": 4}),
        (64, {"num_uniform": 128, "every": 2}),
        (128, {"num_uniform": 128}),
        (300, {"num_uniform": 256}),
        (9999, {"num_uniform": 1024}),
    ],
)
def test_uniform_items_that_fit_by_powers_of_two(fitting, sampler):
    assert chosen(0.2 / (fitting + 0.5)).sampler == {"name": "mixed"} | sampler


def test_the_cost_of_having_any_is_paid_too():
    """A line through the cost of many alone predicted 1.2 times a step and it took 1.35."""
    facts = Facts(128, 100_000, 0.001, normalized=True)

    def of(any_uniform):
        return decide(Costs(1.0, 0.001, any_uniform), facts, 1.2).sampler

    assert of(0.0) == {"name": "mixed", "num_uniform": 128}
    assert of(0.1) == {"name": "mixed", "num_uniform": 256, "every": 2}
    assert of(0.5) == {"name": "mixed", "num_uniform": 256, "every": 4}
    assert of(0.7) == {"name": "in_batch"}


def test_the_batch_alone_where_nothing_fits_or_may():
    assert chosen(0.1).sampler == {"name": "in_batch"}
    assert chosen(1e-6, budget=1.0).sampler == {"name": "in_batch"}


def test_no_uniform_items_beside_dot_products():
    choice = chosen(0.2 / 300, normalized=False)
    assert choice.sampler == {"name": "in_batch"}
    assert "dot products" in choice.reason
    assert chosen(0.2 / 500.5, num_items=500, normalized=False).sampler["name"] == "uniform"


def test_no_uniform_items_beside_several_interests():
    facts = Facts(128, 100_000, 0.001, normalized=True, interests=4)
    choice = decide(Costs(1.0, 0.2 / 300), facts, 1.2)
    assert choice.sampler == {"name": "in_batch"}
    assert "several interests per user" in choice.reason


@pytest.mark.parametrize(("tower", "interests"), [("mind", 3), ("youtube_dnn", 1)])
def test_interests_are_counted_on_the_towers(dataset, recipe, tower, interests, monkeypatch):
    options = {"interests": interests} if tower == "mind" else {}
    model = replace(recipe.model, name=tower, tower=options)
    monkeypatch.setattr(auto_sampler, "measure_costs", lambda *_: Costs(1.0, 1.0))
    seen = []
    monkeypatch.setattr(auto_sampler, "decide", lambda _, facts, __: seen.append(facts))
    choose_sampler(replace(recipe, model=model), dataset)
    assert seen[0].interests == interests


SMALL = Facts(32, 38_519, 1 / 12_500, normalized=True, table=True, steps=16_000)


def test_a_deferred_bank_where_the_map_says_that_it_pays():
    choice = decide(Costs(1.0, 0.2 / 300, deferred=1.19), SMALL, 1.2)
    bank = {"capacity": 2432, "item_gradient": "deferred", "warmup_steps": 1600}
    assert choice.sampler == {"name": "cross_batch"} | bank
    assert "batches of 32 and 12,500 equally likely items gain" in choice.reason
    assert decide(Costs(1.0, 0.2 / 300, deferred=1.21), SMALL, 1.2).sampler["name"] == "mixed"
    assert decide(Costs(1.0, 0.2 / 300, deferred=2.75), SMALL, 3.0).sampler == choice.sampler
    few = replace(SMALL, num_items=100)
    full = decide(Costs(1.0, 1e-9, deferred=1.1), few, 1.2)
    assert full.sampler == {"name": "uniform", "num_negatives": 100}


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 65},  # at 128 rows next to nothing is gained
        {"collision": 1 / 2431},  # a news log has 524 equally likely items, and gains nothing
        {"table": False},  # weights that items share suffer from late gradients
        {"normalized": False},
        {"interests": 2},
        {"alone": False},
    ],
)
def test_no_bank_where_the_map_has_no_gain(change):
    assert auto_sampler.bank_pays(SMALL)
    assert not auto_sampler.bank_pays(replace(SMALL, **change))


def test_a_tower_with_content_or_layers_is_no_table(dataset, recipe):
    bare = replace(recipe.model, item_features=[], item={})
    assert auto_sampler.is_table(build_towers(replace(recipe, model=bare), dataset))
    deep = replace(bare, item={"hidden": [8]})
    assert not auto_sampler.is_table(build_towers(replace(recipe, model=deep), dataset))
    assert not auto_sampler.is_table(torch.nn.Linear(2, 2))


def test_a_deferred_bank_is_timed_only_where_it_may_pay(dataset, recipe):
    trainer = build_trainer(replace(recipe, sampler={"name": "in_batch"}), dataset)
    timed = measure_costs(trainer, recipe, dataset, bank=True)
    assert timed.in_batch < timed.deferred < math.inf
    assert measure_costs(trainer, recipe, dataset).deferred == math.inf


def test_a_small_catalogue_is_not_drawn_from_beyond_its_size():
    assert chosen(0.2 / 95, num_items=100, B=256).sampler["num_uniform"] <= 100


def test_later_items_are_masked_where_there_are_many():
    def of(later, masking, per_uniform=0.2 / 1000, num_items=100_000):
        facts = Facts(128, num_items, 0.001, normalized=True, later=later)
        return decide(Costs(1.0, per_uniform, masking=masking), facts, 1.2)

    masked = of(0.001, 0.1)
    assert masked.loss == {"mask_later": True}
    assert masked.sampler == {"name": "in_batch"}
    assert "they gained nothing" in masked.reason
    assert "users like 0.1% of a batch's items later" in masked.reason
    few = of(0.0009, 0.1)
    assert few.loss == {}
    assert few.sampler["num_uniform"] == 512
    expensive = of(0.5, 0.1, per_uniform=0.1)
    assert expensive.loss == {"mask_later": True}
    assert expensive.sampler == {"name": "in_batch"}
    assert of(0.5, 0.01, num_items=300).sampler == {"name": "uniform", "num_negatives": 300}


def test_the_share_of_later_items_is_counted(dataset, recipe, monkeypatch):
    monkeypatch.setattr(auto_sampler, "LATER_BATCHES", 3)
    found, pairs = 0, 0
    for batch in itertools.islice(dataset.batches(recipe.train.batch_size, seed=0, later=True), 3):
        ids, ends = (part.tolist() for part in batch.later)
        for start, end in itertools.pairwise(ends):
            found += sum(item in ids[start:end] for item in batch.item_ids.tolist())
            pairs += len(batch.item_ids)
    assert found > 0
    assert later_share(recipe, dataset) == pytest.approx(found / pairs, rel=1e-5)


def test_a_run_trains_with_the_loss_that_was_chosen(dataset, recipe, tmp_path, monkeypatch):
    """Resumed too: to the bit what a recipe gives that states the choice."""
    choice = SamplerChoice({"name": "in_batch"}, "", {}, {"mask_later": True})
    monkeypatch.setattr("crossbatch.training.run.choose_sampler", lambda *_, **__: choice)
    auto, run = replace(recipe, sampler=AUTO), tmp_path / "auto"
    with pytest.raises(RuntimeError, match="killed"):
        fit(dataset, auto, run, probe=_killed_at(25))
    resumed = fit(dataset, auto, run, resume=True)
    by_hand = fit(dataset, choice.applied_to(recipe), tmp_path / "by-hand")
    plain = fit(dataset, replace(recipe, sampler={"name": "in_batch"}), tmp_path / "plain")
    assert resumed["valid"] == by_hand["valid"]
    assert resumed["valid"] != plain["valid"]


def test_the_statement_says_what_was_chosen_and_why():
    text = str(chosen(0.2 / 300))
    assert text.startswith("negatives chosen: mixed (num_uniform = 256), because an in-batch step")
    assert "1e+03 ms" in text
    assert "all 100,000 would not" in text


def test_columns_cost_what_the_item_tower_takes(dataset, recipe, monkeypatch):
    """By a clock that the item tower alone moves, a second for each item that it encodes."""
    clock = [0.0]
    monkeypatch.setattr(auto_sampler.time, "process_time", lambda: clock[0])
    towers = build_towers(recipe, dataset)
    encode = towers.item_tower.forward

    def slow(ids):
        clock[0] += len(ids)
        return encode(ids)

    towers.item_tower.forward = slow
    in_batch = replace(recipe, sampler={"name": "in_batch"})
    costs = measure_costs(build_trainer(in_batch, dataset, towers), recipe, dataset)
    assert (costs.in_batch, costs.per_uniform, costs.any_uniform) == (recipe.train.batch_size, 1, 0)


def test_measuring_leaves_the_callers_towers_alone(dataset, recipe):
    towers = build_towers(recipe, dataset)
    before = {name: value.clone() for name, value in towers.state_dict().items()}
    choose_sampler(recipe, dataset, towers)
    assert all(torch.equal(before[name], value) for name, value in towers.state_dict().items())


def test_a_resumed_run_keeps_its_choice(dataset, recipe, tmp_path, monkeypatch):
    auto = resolve(replace(recipe, sampler=AUTO), dataset)
    kill = _killed_at(25)
    with pytest.raises(RuntimeError, match="killed"):
        fit(dataset, auto, tmp_path / "run", probe=kill)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["sampler"] == {"name": "auto", "budget": 1.2}
    monkeypatch.setattr(auto_sampler, "measure_costs", _never)
    result = fit(dataset, auto, tmp_path / "run", resume=True)
    assert result["sampler"] == "auto"
    assert result["advice"] | {"seal": config["advice"]["seal"]} == config["advice"]


def test_bug_a_changed_choice_was_accepted(dataset, recipe, tmp_path):
    """A flipped bit in the choice of `auto`, which neither recipe nor weights contradict."""
    auto, run = replace(recipe, sampler=AUTO), tmp_path / "run"
    with pytest.raises(RuntimeError, match="killed"):
        fit(dataset, auto, run, probe=_killed_at(25))
    whole = (run / "config.json").read_text()
    document = json.loads(whole)
    for value in (
        document["advice"] | {"sampler": {"name": "mixed", "num_uniform": 3}},
        document["advice"] | {"reasom": ""},
        "x",
        [],
    ):
        (run / "config.json").write_text(json.dumps(document | {"advice": value}))
        with pytest.raises(DataError, match=r"config\.json was changed: which negatives"):
            fit(dataset, auto, run, resume=True)
    (run / "config.json").write_text(whole)
    fit(dataset, auto, run, resume=True)


def test_bug_a_run_that_lost_its_choice_took_another(dataset, recipe, tmp_path, monkeypatch):
    auto, run = replace(recipe, sampler=AUTO), tmp_path / "run"
    choices = (SamplerChoice({"name": "mixed", "num_uniform": count}, "", {}) for count in (5, 3))
    monkeypatch.setattr("crossbatch.training.run.choose_sampler", lambda *_, **__: next(choices))
    with pytest.raises(RuntimeError, match="killed"):
        fit(dataset, auto, run, probe=_killed_at(25))
    (run / "config.json").unlink()
    with pytest.raises(DataError, match=r"config\.json is missing .* chose other negatives"):
        fit(dataset, auto, run, resume=True)


def test_a_run_says_its_choice_at_the_start_and_at_the_end(dataset, recipe, tmp_path):
    progress = _Listener()
    result = fit(dataset, replace(recipe, sampler=AUTO), tmp_path / "run", progress=progress)
    lines = [text for text in progress.heard if text.startswith("negatives chosen: ")]
    assert len(lines) == 2
    assert result["advice"]["reason"] in lines[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 9}, "unknown key sampler.capacity; an auto sampler knows: budget"),
        ({"budget": 0.5}, "sampler.budget must be 1 in-batch step or more, got 0.5"),
        ({"budget": "much"}, "sampler.budget must be 1 in-batch step or more, got 'much'"),
    ],
)
def test_bad_options_are_one_sentence(dataset, recipe, options, message):
    with pytest.raises(ConfigError, match=message):
        resolve(replace(recipe, sampler=AUTO | options), dataset)


def test_a_guarded_bank_is_switched_off_when_the_items_collapse(dataset, recipe):
    options = {"name": "cross_batch", "capacity": 70, "warmup_steps": 0, "guard": True}
    trainer = build_trainer(resolve(replace(recipe, sampler=options), dataset), dataset)
    lines = []
    monitor = Monitor(trainer, 1, lambda event, _, **fields: lines.append((event, fields)))
    batches = dataset.batches(recipe.train.batch_size, seed=0)
    monitor(trainer.train_step(next(batches)))
    assert not bool(trainer.sampler.off)
    record = trainer.train_step(next(batches))
    one_direction = torch.ones_like(record.positives.embeddings)
    ids, log_q = record.positives.item_ids, record.positives.log_q
    monitor(replace(record, positives=Candidates(one_direction, ids, log_q)))
    warnings = [fields["message"] for event, fields in lines if event == "warning"]
    assert any("was switched off" in text for text in warnings)
    assert isinstance(trainer.sampler, CrossBatchSampler)
    assert bool(trainer.sampler.off)
    assert len(trainer.train_step(next(batches)).negatives) == recipe.train.batch_size
    resumed = build_trainer(resolve(replace(recipe, sampler=options), dataset), dataset)
    resumed.sampler.load_state_dict(trainer.sampler.state_dict())
    assert bool(resumed.sampler.off)


def _killed_at(last):
    def probe(_, step):
        if step == last:
            raise RuntimeError("killed")

    return probe


def _never(*_):
    raise AssertionError("a resumed run must not choose again")


class _Listener(Progress):
    """Progress that keeps its messages."""

    def __init__(self):
        self.heard = []

    def say(self, message):
        self.heard.append(message)
