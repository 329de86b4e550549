"""The race of candidates: who trains how long, what it may cost, and what Ctrl-C leaves behind."""

import gc
import math
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from crossbatch.negatives import NonFiniteLossError
from crossbatch.training import Interrupted
from crossbatch.training.build import build_trainer, draw_batches, resolve
from crossbatch.training.race import Contender, Race
from crossbatch.training.step import Trainer

VALUES = {"a": 0.3, "b": 0.5, "c": 0.1, "d": 0.5, "e": 0.2}  # b and d are equally good
LENGTHS = {name: length for length, name in enumerate(VALUES, start=2)}  # tell candidates apart
NAMES = {length: name for name, length in LENGTHS.items()}


@pytest.fixture
def candidates(dataset, recipe):
    in_batch = resolve(replace(recipe, sampler={"name": "in_batch"}), dataset)
    return {
        name: replace(in_batch, train=replace(in_batch.train, history_length=length))
        for name, length in LENGTHS.items()
    }


def by_name(_, recipe):
    return VALUES[NAMES[recipe.train.history_length]]


class Clock:
    """Stands still but for what the test adds."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def steps_taken(monkeypatch):
    """Steps of each candidate, counted where they are taken; a step takes a second of `clock`."""
    taken, clock, step = Counter(), Clock(), Trainer.train_step

    def counted(trainer, batch):
        taken[NAMES[batch.history.shape[1]]] += 1
        clock.now += 1
        return step(trainer, batch)

    monkeypatch.setattr(Trainer, "train_step", counted)
    taken.clock = clock
    return taken


def short(recipe):
    return replace(recipe, train=replace(recipe.train, max_steps=6))


def schedule(measured):
    return [(each.candidate, each.steps) for each in measured]


def test_the_better_half_continues_to_twice_the_steps(dataset, candidates, steps_taken):
    race = Race(candidates, dataset, by_name, 3, 1e9, clock=steps_taken.clock)
    last = race.run()
    assert schedule(race.measured) == [
        *((name, 3) for name in "abcde"),
        *((name, 6) for name in "bda"),  # the better half of five is three
        *((name, steps) for steps in (12, 24, 48, 60) for name in "bd"),  # to the end of the run
    ]
    assert schedule(last) == [("b", 60), ("d", 60)]  # of equals, the first
    assert steps_taken == {"a": 6, "b": 60, "c": 3, "d": 60, "e": 3}  # on from where they were


def test_the_last_two_may_change_places(dataset, candidates, steps_taken):
    """One that learns fast at first is overtaken, if there is time."""
    three = {name: candidates[name] for name in "abc"}

    def learning(_, recipe):
        name = NAMES[recipe.train.history_length]
        return {"a": 0.6, "b": 1 - 1 / steps_taken[name], "c": 0.1}[name]

    for seconds, winner in ((1, "a"), (1e9, "b")):
        steps_taken.clear()
        last = Race(three, dataset, learning, 2, seconds, clock=steps_taken.clock).run()
        assert last[0].candidate == winner


def test_a_race_does_not_train_longer_than_the_run(dataset, candidates, steps_taken):
    short = {
        name: replace(r, train=replace(r.train, max_steps=5)) for name, r in candidates.items()
    }
    race = Race(short, dataset, by_name, 3, 1e9)
    assert schedule(race.run()) == [("b", 5), ("d", 5), ("a", 5)]
    race = Race(short, dataset, by_name, 30, 1e9)
    assert {each.steps for each in race.run()} == {5}


def test_no_comparison_falls_within_an_optimiser_step(dataset, candidates):
    train = {"accumulate": 4, "eval_every": 20}
    pair = {
        name: replace(candidates[name], train=replace(candidates[name].train, **train))
        for name in "ab"
    }
    assert {each.steps for each in Race(pair, dataset, by_name, 3, 1e-9).run()} == {4}


@pytest.mark.parametrize(
    # Steps take a second, the first of each is not counted; a measurement takes two.
    ("seconds", "rounds", "spent"),
    [
        (0.001, [3], 5 * (2 + 2)),  # the first round in any case
        (34, [3], 20),  # the second would take 3 · (3 + 2)
        (35, [3, 6], 35),
        (50, [3, 6], 35),  # the third, 2 · (6 + 2)
        (51, [3, 6, 12], 51),
        (78, [3, 6, 12], 51),  # the fourth, 2 · (12 + 2)
        (79, [3, 6, 12, 24], 79),
    ],
)
def test_a_round_that_does_not_fit_is_not_begun(
    dataset, candidates, steps_taken, seconds, rounds, spent
):
    clock = steps_taken.clock

    def slow(model, recipe):
        clock.now += 2
        return by_name(model, recipe)

    race = Race(candidates, dataset, slow, 3, seconds, clock=clock)
    last = race.run()
    assert sorted({each.steps for each in race.measured}) == rounds
    assert last[0].candidate == "b"
    assert race.cpu_seconds() == pytest.approx(spent)


def test_candidates_learn_what_they_learn_alone(dataset, candidates):
    """Dropout and batches of one do not depend on the others, nor on when it is measured."""
    plain = candidates["a"]
    dropout = replace(plain, model=replace(plain.model, history_dropout=0.5))
    trainer = build_trainer(dropout, dataset)
    batches = draw_batches(dropout.train, dataset)
    for step in range(1, 7):
        trainer.train_step(next(batches))
        if step in (1, 3, 6):  # rows make up for skipped steps, which rounds differently in one go
            trainer.optimizer.flush()
    seen = {}

    def spy(model, recipe):
        torch.rand(7)
        seen[recipe.train.history_length] = {k: v.clone() for k, v in model.state_dict().items()}
        return by_name(model, recipe)

    race = {"a": short(dropout), "b": short(candidates["b"]), "c": short(candidates["c"])}
    Race(race, dataset, spy, 3, 1e9).run()
    for key, value in trainer.model.state_dict().items():
        assert torch.equal(seen[LENGTHS["a"]][key], value)


def test_the_race_leaves_the_random_state_alone(dataset, candidates):
    before = torch.get_rng_state()
    Race({name: candidates[name] for name in "ab"}, dataset, by_name, 2, 1e9).run()
    assert torch.equal(torch.get_rng_state(), before)


@contextmanager
def stopped_after(steps, patch):
    """As if Ctrl-C came after so many steps."""
    answers = iter([*[False] * (steps - 1), *[True] * 99])

    @contextmanager
    def flag():
        yield lambda: next(answers)

    with patch.context() as context:
        context.setattr("crossbatch.training.race.interrupt_flag", flag)
        yield


@pytest.mark.parametrize("stop", [1, 7, 15, 17, 22, 30])
def test_a_race_continues_with_the_next_measurement(
    dataset, candidates, steps_taken, monkeypatch, stop
):
    def value(model, _):
        return float(model.item_tower.table.weight.detach().sum())  # what was learned, exactly

    whole = Race(candidates, dataset, value, 3, 40, clock=steps_taken.clock)
    expected = whole.run()
    kept = []
    with stopped_after(stop, monkeypatch), pytest.raises(Interrupted, match="--resume"):
        Race(candidates, dataset, value, 3, 40, [], kept.__init__, steps_taken.clock).run()
    assert len(kept) < len(whole.measured)
    steps_taken.clear()
    rest = Race(candidates, dataset, value, 3, 40, list(kept), clock=steps_taken.clock)
    assert rest.run() == expected
    assert rest.measured == whole.measured  # seconds too: catching up is not counted
    done = {(each.candidate, each.steps) for each in kept}
    again = {each.candidate for each in whole.measured if schedule([each])[0] not in done}
    assert set(steps_taken) == again


def test_a_candidate_that_diverges_is_out(dataset, candidates, monkeypatch):
    step = Trainer.train_step

    def diverging(trainer, batch):
        if batch.history.shape[1] == LENGTHS["b"] and trainer.step == 4:
            raise NonFiniteLossError("nan")
        return step(trainer, batch)

    monkeypatch.setattr(Trainer, "train_step", diverging)
    three = {name: candidates[name] for name in "abc"}
    race = Race(three, dataset, by_name, 3, 1e9)
    assert [(each.candidate, each.value) for each in race.run()] == [("a", 0.3), ("b", None)]
    race = Race(three, dataset, lambda *_: math.nan, 3, 1e9)
    assert [each.value for each in race.run()] == [None] * 3


def test_negatives_are_not_chosen_for_each_candidate(dataset, recipe):
    auto = resolve(replace(recipe, sampler={"name": "auto"}), dataset)
    assert type(Contender(auto, dataset).trainer.sampler).__name__ == "InBatchSampler"
    assert type(Contender(recipe, dataset).trainer.sampler).__name__ == "CrossBatchSampler"


def test_those_that_are_out_make_room(dataset, candidates):
    alive = []

    def watch(model, recipe):
        alive.append(len(race._contenders))
        return by_name(model, recipe)

    race = Race(candidates, dataset, watch, 2, 1e9)
    race.run()
    assert max(alive) <= 3  # besides the one that is measured


@pytest.mark.parametrize(("seconds", "alive"), [(17, [1, 1]), (18, [1, 2])])
def test_who_will_not_train_on_makes_room(dataset, candidates, steps_taken, seconds, alive):
    """Each takes 2 + 2 seconds; a second round would take 3 + 2 more."""
    trainers, found = [], []

    def watch(model, recipe):
        steps_taken.clock.now += 2
        trainers.append(weakref.ref(model))
        gc.collect()
        found.append(sum(each() is not None for each in trainers))
        return by_name(model, recipe)

    pair = {name: candidates[name] for name in "ab"}
    Race(pair, dataset, watch, 3, seconds, clock=steps_taken.clock).run()
    assert found[:2] == alive
