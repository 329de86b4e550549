"""The recipe for Qdrant of the documentation, run in Qdrant's local mode, against brute force."""

from pathlib import Path

import pytest

pytest.importorskip("qdrant_client", reason="pip install qdrant-client")

PAGE = Path(__file__).parents[2] / "docs" / "production.md"


@pytest.mark.parametrize("name", ["id_bundle", "light_bundle"])  # one vector, three interests
def test_qdrant_finds_the_best_items(name, request):
    bundle = request.getfixturevalue(name)
    blocks = PAGE.read_text().split("```python\n")
    (code,) = [block.split("```")[0] for block in blocks if "QdrantClient(" in block]
    history = bundle.item_keys([5, 9])
    code = code.replace('["B00000017", "B00000004"]', repr(history))
    names = {"bundle": bundle}
    exec(compile(code, str(PAGE), "exec"), names)
    interests, items = names["interests"].double(), bundle.item_vectors.double()
    scores = (interests @ items.T).amax(dim=0)
    ids = [item for item in range(1, bundle.num_items + 1) if item not in (5, 9)]
    expected = sorted(ids, key=lambda item: -float(scores[item]))[:20]
    assert [round(float(scores[item]), 4) for item in names["ranked"]] == [
        round(float(scores[item]), 4) for item in expected
    ]
    assert not {5, 9} & set(names["ranked"])
