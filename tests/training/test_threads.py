import torch

from crossbatch.data import Batch
from crossbatch.models import build_model
from crossbatch.negatives import Corpus, CrossBatchSampler
from crossbatch.training import Adam, Trainer, threads


def trainer_and_batch(B: int = 8) -> tuple[Trainer, Batch]:
    torch.manual_seed(0)
    model = build_model("youtube_dnn", 50, 4)
    sampler = CrossBatchSampler(Corpus(torch.ones(51), 4), capacity=16, warmup_steps=0)
    batch = Batch(torch.arange(B), torch.randint(1, 51, (B, 5)), torch.randint(1, 51, (B,)))
    return Trainer(model, sampler, Adam(model, lr=0.1)), batch


def choice(monkeypatch, seconds: dict[int, float]) -> int:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.setattr(threads, "_seconds", lambda trainer, batch, n: seconds[n])
    return threads.measured_threads(*trainer_and_batch())


def test_all_cores_only_where_they_are_worth_it(monkeypatch):
    assert choice(monkeypatch, {1: 1.0, 4: 0.5}) == 4
    assert choice(monkeypatch, {1: 1.0, 4: 0.8}) == 1
    assert choice(monkeypatch, {1: 1.0, 4: 2.0}) == 1


def test_measuring_changes_nothing_that_training_depends_on(monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(2), raising=False)
    measured, batch = trainer_and_batch()
    plain, _ = trainer_and_batch()
    before = torch.get_num_threads()
    threads.measured_threads(measured, batch)
    assert torch.get_num_threads() == before
    state = torch.get_rng_state()
    for trainer in (measured, plain):
        torch.set_rng_state(state)
        for _ in range(3):
            trainer.train_step(batch)
    for ours, theirs in zip(measured.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_one_core_is_not_measured(monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(1), raising=False)
    monkeypatch.setattr(threads, "_seconds", None)
    assert threads.measured_threads(*trainer_and_batch()) == torch.get_num_threads()
