"""The libraries inside the library work where nothing but torch is installed."""

import subprocess
import sys
import textwrap

import pytest

BLOCK = """
    import sys

    ABSENT = ("numpy", "polars", "rich", "typer", "safetensors", "faiss", "numba", "tqdm")
    sys.modules.update(dict.fromkeys(ABSENT))  # None: as if it were not installed
    import torch
"""

NEGATIVES = """
    from crossbatch.negatives import SAMPLERS, Candidates, Corpus, CrossBatchSoftmax

    loss_fn = CrossBatchSoftmax(4, capacity=8, warmup_steps=0, item_counts=torch.ones(10))
    for _ in range(3):
        u, v = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
        loss_fn(u, v, torch.tensor([1, 2, 3])).backward()
    assert loss_fn.stats()["bank_fill"] == 8
    for build in SAMPLERS.values():
        sampler, ids = build(Corpus(torch.ones(10), dim=4)), torch.tensor([1, 2, 3])
        positives = Candidates(v, ids, sampler.log_q(ids))
        sampler.draw(u, positives, lambda ids: torch.zeros(len(ids), 4))
"""
MODELS = """
    from crossbatch.models import MODELS, build_model

    for name in MODELS:
        u, v = build_model(name, 10, dim=8)(torch.tensor([[1, 2, 0]]), torch.tensor([3]))
        assert len(u) == len(v) == 1
"""
RETRIEVAL = """
    from crossbatch.retrieval import ExactIndex

    top = ExactIndex(torch.eye(5)).search(torch.eye(5)[2].expand(1, 1, 5), k=2)
    assert top.item_ids[0, 0] == 2
"""
OWN = """
    ours = {name.split(".")[1] for name in sys.modules if name.startswith("crossbatch.")}
    assert ours <= {PACKAGE, "kernels", "queries"}, ours
    assert not any(map(sys.modules.get, ABSENT))
"""


USES = {"negatives": NEGATIVES, "models": MODELS, "retrieval": RETRIEVAL}


@pytest.mark.parametrize("package", USES)
def test_works_with_torch_alone(package):
    code = "".join(
        map(textwrap.dedent, (BLOCK, USES[package], OWN.replace("PACKAGE", repr(package))))
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
