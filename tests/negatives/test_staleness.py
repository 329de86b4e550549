"""Drift control: vectors that turn at a known speed, and the rows that a limit then allows."""

import math

import pytest
import torch

from crossbatch.negatives import Candidates, Corpus, CrossBatchSampler
from crossbatch.negatives.memory_bank import MEASURE_EVERY, DriftGauge, MemoryBank

B = 4


def turned(angle):
    """B unit vectors in the plane, all turned by `angle`."""
    start = torch.linspace(0, 3, B)
    return torch.stack([torch.cos(start + angle), torch.sin(start + angle)], dim=1)


def batch(angle, first_id=1):
    return Candidates(turned(angle), torch.arange(first_id, first_id + B), torch.zeros(B))


def run(gauge, bank, speeds):
    angle = 0.0
    for speed in speeds:
        angle += speed
        gauge.observe(bank, batch(angle))
        bank.enqueue(batch(angle))


def test_the_measured_speed_is_that_of_the_vectors():
    gauge, bank = DriftGauge(), MemoryBank(10 * B, 2)
    run(gauge, bank, [0.004] * 61)
    # Chords are a little shorter than arcs: 2 sin(a θ / 2) against a θ.
    ages = torch.arange(1, 11).double()
    speed = float((2 * torch.sin(ages * 0.002)).sum() / ages.sum())
    assert float(gauge.moved / gauge.aged) == pytest.approx(speed, rel=1e-4)
    assert gauge.readable_rows(0.02, B) == int(2 * 0.02 / speed * B)


def test_mean_staleness_of_the_rows_it_allows_is_the_limit():
    gauge, bank = DriftGauge(), MemoryBank(40 * B, 2)
    run(gauge, bank, [0.01] * 81)
    limit = 0.05
    rows = bank.read(gauge.readable_rows(limit, B))
    fresh = turned(0.01 * 82).repeat(len(rows) // B, 1)  # the batch that would come next
    stale = (rows.embeddings - fresh).norm(dim=1).mean()
    assert 0.8 * limit < float(stale) <= 1.15 * limit


def test_it_follows_vectors_that_settle():
    gauge, bank = DriftGauge(), MemoryBank(10 * B, 2)
    run(gauge, bank, [0.2] * 51)
    early = gauge.readable_rows(0.1, B)
    run(gauge, bank, [0.001] * 400)
    assert early < 2 * B
    assert gauge.readable_rows(0.1, B) > 100 * B


def test_nothing_is_read_before_anything_was_measured():
    gauge, bank = DriftGauge(), MemoryBank(10 * B, 2)
    assert gauge.readable_rows(0.1, B) == 0
    for step in range(25):  # never the same item twice
        gauge.observe(bank, batch(0.0, first_id=1 + B * step))
        bank.enqueue(batch(0.0, first_id=1 + B * step))
    assert gauge.readable_rows(0.1, B) == 0


def test_vectors_at_rest_make_the_whole_bank_readable():
    gauge, bank = DriftGauge(), MemoryBank(10 * B, 2)
    run(gauge, bank, [0.0] * 21)
    assert gauge.readable_rows(0.1, B) >= 10 * B


def sampler(**options):
    corpus = Corpus(torch.ones(B + 1), dim=2)
    return CrossBatchSampler(
        corpus, capacity=10 * B, warmup_steps=0, item_gradient="balanced", **options
    )


def drawn(banked, speeds):
    """Columns drawn at each step while vectors turn."""
    sizes, angle = [], 0.0
    for speed in speeds:
        angle += speed
        positives = batch(angle)
        columns = banked.draw(torch.zeros(B, 2), positives, lambda ids: ids)
        sizes.append(len(columns))
        banked.observe(positives)
    return sizes


def test_the_sampler_reads_the_newest_rows_as_vectors_settle():
    speeds = [0.5] * 30 + [0.02] * 200 + [0.0] * 200
    sizes = drawn(sampler(max_staleness=0.1), speeds)
    assert sizes[: MEASURE_EVERY + 1] == [B] * (MEASURE_EVERY + 1)  # nothing measured yet
    assert sizes[29] < 2 * B  # half a radian an iteration: hardly a row
    assert 7 * B <= sizes[225] < 11 * B  # 10 iterations at 0.02 are 0.1 on average
    assert sizes[-1] == 11 * B
    assert drawn(sampler(), speeds)[29] == 11 * B  # without the option the whole bank is read


def test_a_bank_is_read_until_it_repeats_itself():
    at_rest = [0.0] * 40
    assert drawn(sampler(max_repeats=3.0), at_rest)[-1] == 4 * B  # B equally likely items
    assert drawn(sampler(max_repeats=99.0), at_rest)[-1] == 11 * B  # more than the bank has
    assert drawn(sampler(max_repeats=3.0, max_staleness=0.1), [0.5] * 40)[-1] < 2 * B
    counts = torch.tensor([7.0, 3.0, 1.0] + [0.0] * B)  # q = 3/4, 1/4: 1.6 equally likely items
    one_sided = CrossBatchSampler(Corpus(counts, dim=2), capacity=99, max_repeats=10.0)
    assert one_sided.max_rows == 16


@pytest.mark.parametrize("limit", [-1.0, math.inf, math.nan])
def test_repeats_out_of_range_are_refused(limit):
    with pytest.raises(ValueError, match=r"max_repeats must be finite and not negative .*, got"):
        sampler(max_repeats=limit)


def test_a_resumed_sampler_reads_as_much_as_an_unbroken_one():
    whole, broken = sampler(max_staleness=0.05), sampler(max_staleness=0.05)
    drawn(whole, [0.01] * 40)
    drawn(broken, [0.01] * 20)
    resumed = sampler(max_staleness=0.05)
    resumed.load_state_dict(broken.state_dict())
    angle = 0.2
    for _ in range(20):
        angle += 0.01
        resumed.draw(torch.zeros(B, 2), batch(angle), lambda ids: ids)
        resumed.observe(batch(angle))
    assert float(resumed.drift.moved) == pytest.approx(float(whole.drift.moved), rel=1e-5)
    assert float(resumed.drift.aged) == float(whole.drift.aged)


@pytest.mark.parametrize("limit", [-0.1, 1.0, math.inf])
def test_a_limit_out_of_range_is_refused(limit):
    with pytest.raises(ValueError, match=r"max_staleness must be between 0 \(off\) and 1, got"):
        sampler(max_staleness=limit)
