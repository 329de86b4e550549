"""The choice of an index: its measurements, and the rule with given times."""

import pytest
import torch

import crossbatch.retrieval.choice as choice
from crossbatch.retrieval import ExactIndex, IVFIndex, TopK, choose_index

VECTORS = torch.randn(1501, 8, generator=torch.Generator().manual_seed(0))
USERS = torch.randn(30, 2, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def times(monkeypatch):
    """Milliseconds of a search, by kind of index, as the test has it."""
    table = {ExactIndex: 1.0, IVFIndex: 0.5}
    monkeypatch.setattr(choice, "milliseconds", lambda index, *_: table[type(index)])
    return table


def test_fast_enough_is_exact(times):
    times[ExactIndex] = choice.EXACT_MILLISECONDS
    index, facts = choose_index(VECTORS, USERS)
    assert isinstance(index, ExactIndex)
    assert (facts.name, facts.recall, facts.milliseconds, facts.users) == ("exact", 1.0, 10.0, 30)


def test_too_slow_is_approximate_with_the_recall_asked_for(times):
    pytest.importorskip("faiss")
    times[ExactIndex] = 50.0
    index, facts = choose_index(VECTORS, USERS, k=20, target=0.9)
    assert isinstance(index, IVFIndex)
    truth = ExactIndex(VECTORS).search(USERS, 20).item_ids.tolist()
    found = index.search(USERS, 20).item_ids.tolist()
    hits = [len(set(a) & set(b)) / 20 for a, b in zip(truth, found, strict=True)]
    assert facts.recall == pytest.approx(sum(hits) / len(hits))
    assert facts.recall >= 0.9
    assert (facts.milliseconds, facts.exact_milliseconds) == (0.5, 50.0)
    if index.probes > 1:  # and no probe more than it takes
        index.probes //= 2
        assert choice.recall_of(index, USERS, torch.tensor(truth)) < 0.9


def test_an_index_that_is_no_faster_is_not_worth_it(times):
    pytest.importorskip("faiss")
    times.update({ExactIndex: 50.0, IVFIndex: 60.0})
    assert isinstance(choose_index(VECTORS, USERS)[0], ExactIndex)
    assert isinstance(choose_index(VECTORS, USERS, name="ivf")[0], IVFIndex), "unless asked for"


def test_exact_is_exact_however_slow(times):
    times[ExactIndex] = 1e6
    assert isinstance(choose_index(VECTORS, USERS, name="exact")[0], ExactIndex)


def test_without_faiss_auto_is_exact(times, monkeypatch):
    def missing(vectors):
        raise ImportError("no faiss")

    times[ExactIndex] = 50.0
    monkeypatch.setattr(IVFIndex, "build", missing)
    assert isinstance(choose_index(VECTORS, USERS)[0], ExactIndex)
    with pytest.raises(ImportError):
        choose_index(VECTORS, USERS, name="ivf")


def test_a_catalogue_smaller_than_the_lists():
    index, facts = choose_index(VECTORS[:4], USERS)
    assert facts.k == index.num_items == 3


def test_recall_counts_places_that_hold_an_item():
    class Fixed:
        exact, num_items = False, 9

        def search(self, interests, k, *, exclude=None):
            return TopK(torch.zeros(2, 3), torch.tensor([[1, 2, 9], [4, 0, 0]]))

    truth = torch.tensor([[2, 1, 3], [4, 0, 0]])
    assert choice.recall_of(Fixed(), USERS[:2], truth) == 3 / 4


def test_time_is_the_least_of_several(monkeypatch):
    clock = iter([0.0, 0.009, 1.0, 1.002, 2.0, 2.005])
    monkeypatch.setattr(choice.time, "perf_counter", lambda: next(clock))
    assert choice.milliseconds(ExactIndex(VECTORS), USERS[:3], 5) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "hnsw"}, "index must be one of auto, exact, ivf, got 'hnsw'"),
        ({"target": 0.0}, r"recall must be in \(0, 1\], got 0.0"),
        ({"target": 1.01}, r"recall must be in \(0, 1\], got 1.01"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        choose_index(VECTORS, USERS, **options)
