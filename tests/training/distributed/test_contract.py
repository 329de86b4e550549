"""R ranks give what one process gives: losses, gradients, weights, banks, to float rounding."""

import sys
from pathlib import Path

import pytest
import torch

from .cases import BATCHES, CASES, CATALOGUES, EVALUATED, outcome, searched
from .launching import run

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from capacity import Shape, replicated_traffic

WORKER = __file__.replace("test_contract", "worker")


@pytest.fixture(scope="module", params=[2, 3], ids="{} ranks".format)
def ranks(request, dataset, tmp_path_factory):
    """What every rank of a group of that size got, by case."""
    out = tmp_path_factory.mktemp("ranks")
    run(request.param, [WORKER, str(dataset.path), str(out), *CASES])
    return {
        case: [torch.load(out / f"{case}-{rank}.pt") for rank in range(request.param)]
        for case in (*CASES, "bytes", "lists")
    }


@pytest.fixture(scope="module")
def alone(dataset):
    return {case: outcome(dataset, case, None) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_ranks_do_what_one_process_does(case, ranks, alone):
    for found in ranks[case]:
        torch.testing.assert_close(found["losses"], alone[case]["losses"], rtol=1e-5, atol=1e-6)
        for key, expected in alone[case]["gradients"].items():
            torch.testing.assert_close(found["gradients"][key], expected, rtol=1e-4, atol=1e-7)
        for part in ("weights", "sampler", "optimizer"):
            assert found[part].keys() == alone[case][part].keys()
            for key, expected in alone[case][part].items():
                torch.testing.assert_close(found[part][key], expected, rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(found["users"], alone[case]["users"], rtol=1e-4, atol=2e-6)
        assert torch.equal(found["columns"], alone[case]["columns"])
        assert torch.equal(found["random"], alone[case]["random"])


@pytest.mark.parametrize("case", CASES)
def test_ranks_are_equal_to_the_last_bit(case, ranks):
    first, *others = ranks[case]
    for other in others:
        for part in ("weights", "sampler", "optimizer"):
            for key, value in first[part].items():
                assert torch.equal(other[part][key], value), key
        assert torch.equal(other["losses"], first["losses"])


@pytest.mark.parametrize("case", EVALUATED)
def test_ranks_have_the_metrics_of_one_process(case, ranks, alone):
    for found in ranks[case]:
        # Items whose scores differ by rounding may change places at the end of a list.
        assert found["metrics"] == pytest.approx(alone[case]["metrics"], abs=3e-3, nan_ok=True)
        assert found["metrics"] == pytest.approx(ranks[case][0]["metrics"], abs=0, nan_ok=True)


def test_merged_lists_are_exact(ranks):
    for found in ranks["lists"]:
        for num_items, (scores, item_ids) in zip(CATALOGUES, found, strict=True):
            expected = searched(None, num_items)
            assert torch.equal(scores, expected.scores)
            assert torch.equal(item_ids, expected.item_ids)


def test_bytes_of_a_step_are_those_of_the_formula(ranks, dataset):
    for counts in ranks["bytes"]:
        for batch, counted in zip(BATCHES, counts, strict=True):
            shape = Shape(
                dataset.num_items, 8, len(ranks["bytes"]), batch, dense=8 * 8 + 8, tensors=2
            )
            assert counted == sum(replicated_traffic(shape).values())
