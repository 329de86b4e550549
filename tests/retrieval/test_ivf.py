"""Approximate search: exact scores, complete lists, recall that grows with the probes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crossbatch.retrieval.ivf as ivf_module
from crossbatch.retrieval import ExactIndex, IVFIndex
from crossbatch.retrieval.choice import choose_index

pytest.importorskip("faiss")


def clustered(num_items, d=8, *, seed=0):
    """Vectors `[N + 1, d]` in clusters, as trained ones are; row 0 would win every search."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(2, num_items // 20), d, generator=generator)
    chosen = torch.randint(len(centres), (num_items,), generator=generator)
    vectors = centres[chosen] + 0.3 * torch.randn(num_items, d, generator=generator)
    return torch.cat([torch.full((1, d), 100.0), vectors])


@pytest.fixture(scope="module", params=["8 bits", "4 bits"])
def index(request):
    """An index with the codes of few items, and one with those of many."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "4 bits":
            patch.setattr(ivf_module, "MANY_ITEMS", 1_000)
        return IVFIndex.build(clustered(2000), probes=8)


def users(B, K, d=8, seed=1):
    return torch.randn(B, K, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("K", [1, 4])
def test_with_every_cell_probed_it_is_exact(K):
    """8-bit codes are then all that could lose an item, and more are fetched than needed."""
    vectors = clustered(2000)
    index = IVFIndex.build(vectors)
    index.probes = index.num_cells
    exact = ExactIndex(vectors).search(users(20, K), 30)
    found = index.search(users(20, K), 30)
    assert torch.equal(found.item_ids, exact.item_ids)
    torch.testing.assert_close(found.scores, exact.scores)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    B=st.integers(0, 6),
    K=st.integers(1, 4),
    k=st.integers(1, 60),
    X=st.integers(0, 40),
)
def test_lists_are_valid_for_any_number_of_probes(index, seed, B, K, k, X):
    """Right scores, falling; ties by id; no padding, repeats or excluded items; full length."""
    interests = users(B, K, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    exclude = torch.randint(0, 2001, (B, X), generator=generator)
    found = index.search(interests, k, exclude=exclude)
    assert found.item_ids.shape == found.scores.shape == (B, k)
    for row in range(B):
        ids = found.item_ids[row]
        assert (ids > 0).all()
        assert len(set(ids.tolist())) == k
        assert not set(ids.tolist()) & set(exclude[row].tolist())
        truth = (interests[row] @ index.vectors[ids].T).amax(dim=0)
        torch.testing.assert_close(found.scores[row], truth, atol=1e-5, rtol=1e-5)
        pairs = [
            (-score, item)
            for score, item in zip(found.scores[row].tolist(), ids.tolist(), strict=True)
        ]
        assert pairs == sorted(pairs)


def test_blocks_change_nothing(index, monkeypatch):
    interests, exclude = users(9, 2), torch.arange(1, 28).view(9, 3)
    whole = index.search(interests, 20, exclude=exclude)
    monkeypatch.setattr(ivf_module, "BLOCK_NUMBERS", 1)
    single = index.search(interests, 20, exclude=exclude)
    assert torch.equal(whole.item_ids, single.item_ids)


def test_too_little_found_is_answered_exactly():
    """One probed cell holds a handful of items; the list must be full and, then, exact."""
    vectors = clustered(2000)
    index = IVFIndex.build(vectors, probes=1)
    cell = index.search(users(1, 1), 1)
    assert cell.item_ids.shape == (1, 1)
    found = index.search(users(5, 1), 100)
    exact = ExactIndex(vectors).search(users(5, 1), 100)
    assert torch.equal(found.item_ids, exact.item_ids)


def test_codes_of_many_items_lose_little(monkeypatch):
    """With every cell probed, only the codes of 4 bits lose items; few with a filter, too."""
    monkeypatch.setattr(ivf_module, "MANY_ITEMS", 1_000)
    vectors, interests = clustered(20_000, d=32), users(64, 2, d=32)
    index = IVFIndex.build(vectors)
    assert "PQ" in type(index._cells).__name__
    index.probes = index.num_cells
    odd = torch.arange(20_001) % 2 == 1
    for allowed in (None, odd):
        truth = ExactIndex(vectors).search(interests, 50, allowed=allowed).item_ids
        found = index.search(interests, 50, allowed=allowed).item_ids
        assert (truth[:, :, None] == found[:, None]).any(dim=2).double().mean() > 0.99


def test_where_codes_of_4_bits_lose_too_much_the_choice_takes_8(monkeypatch):
    for name, value in (("MANY_ITEMS", 1_000), ("OVERSAMPLING", 1), ("LEAST_CANDIDATES", 1)):
        monkeypatch.setattr(ivf_module, name, value)
    vectors = torch.randn(4_001, 16, generator=torch.Generator().manual_seed(0))
    asked = users(64, 1, d=16)
    for target, codes in ((0.5, "PQ"), (0.95, "ScalarQuantizer")):
        index, facts = choose_index(vectors, asked, name="ivf", k=5, target=target)
        assert codes in type(index._cells).__name__
        assert facts.recall >= target


def test_more_probes_find_more():
    vectors, interests = clustered(4000), users(60, 2)
    truth = ExactIndex(vectors).search(interests, 20).item_ids
    index = IVFIndex.build(vectors)
    shares = []
    for probes in (1, 4, 16, index.num_cells):
        index.probes = probes
        found = index.search(interests, 20).item_ids
        shares.append((truth[:, :, None] == found[:, None]).any(dim=2).float().mean().item())
    assert shares == sorted(shares)
    assert shares[0] < 0.95 < shares[-1]


def test_saved_and_loaded_it_answers_the_same(index, tmp_path):
    index.save(tmp_path / "cells")
    again = IVFIndex.load(tmp_path / "cells", index.vectors, probes=index.probes)
    assert torch.equal(again.search(users(5, 3), 9).item_ids, index.search(users(5, 3), 9).item_ids)


def test_bug_rows_of_a_forged_file_were_looked_up(index, tmp_path):
    """A number beyond the catalogue failed only in a search; a repeated one lost an item."""
    path = tmp_path / "index.faiss"
    index.save(path)
    content = path.read_bytes()
    row = (index.num_items - 1).to_bytes(8, "little")  # where the last row is kept
    assert content.count(row) == 1
    for forged in (10**11, 0, 2**63):
        path.write_bytes(content.replace(row, forged.to_bytes(8, "little")))
        with pytest.raises(ValueError, match="does not hold each item of the catalogue once"):
            IVFIndex.load(path, index.vectors, probes=index.probes)


def test_the_cells_are_kept_over_other_items(index):
    more = torch.cat([index.vectors, 3 * clustered(50, seed=9)[1:]])
    larger = index.over(more)
    assert (larger.num_items, larger.num_cells, larger.probes) == (2050, index.num_cells, 8)
    found = larger.search(more[None, 2001:2002], 1)
    assert (
        found.item_ids.item() == ExactIndex(more).search(more[None, 2001:2002], 1).item_ids.item()
    )
    smaller = index.over(index.vectors[:1001])
    assert smaller.search(users(8, 1), 40).item_ids.max() <= 1000
    assert index.num_items == 2000, "the old index is as it was"


def test_mistakes_are_named(index, tmp_path):
    with pytest.raises(ValueError, match="probes must be at least 1, got 0"):
        IVFIndex.build(clustered(50), probes=0)
    with pytest.raises(ValueError, match="must be finite"):
        IVFIndex.build(torch.full((50, 2), torch.nan))
    index.save(tmp_path / "cells")
    with pytest.raises(ValueError, match="2000 vectors of 8 numbers, the catalogue 100 of 8"):
        IVFIndex.load(tmp_path / "cells", index.vectors[:101], probes=1)
    (tmp_path / "cells").write_bytes(b"no index")
    with pytest.raises(ValueError, match="no index that faiss can read"):
        IVFIndex.load(tmp_path / "cells", index.vectors, probes=1)
    with pytest.raises(ValueError, match="k must be"):
        index.search(users(1, 1), 0)


def test_without_faiss_the_remedy_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(ivf_module, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install 'crossbatch\[ann\]'"):
        IVFIndex.build(clustered(50))
