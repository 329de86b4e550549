"""The model card shows untrusted names as text, not as markup."""

import copy
from types import SimpleNamespace

import pytest

from crossbatch.serving.bundle.writing import model_card

FACTS = {
    "name": "shop",
    "model": "mind",
    "interests": 4,
    "dim": 8,
    "items": {"count": 3, "trained": 3},
    "origin": {
        "sampler": "in_batch",
        "best_step": 5,
        "dataset": {
            "counts": {"train_interactions": 9, "train_users": 3, "items": 3},
            "files": ["log.csv"],
            "split": "user",
            "checksum": "0" * 64,
        },
    },
    "created": "2026-01-01",
    "made_by": {"crossbatch": "1"},
    "parity": {"users": 1, "tolerance": 1e-5, "scores": 1e-7},
    "index": {"name": "exact", "k": 5, "recall": 1.0, "milliseconds": 1, "exact_milliseconds": 1},
}
HOSTILE = "\n```\n<script>alert(1)</script>`| \x1b[2J\u202e"


def card(name="shop", feature="genre", file="log.csv", keys=("i1", "i2")):
    facts = copy.deepcopy(FACTS) | {"name": name}
    facts["origin"]["dataset"]["files"] = [file]
    bundle = SimpleNamespace(
        metrics={},
        num_items=3,
        item_keys=lambda _: list(keys),
        history_length=20,
        config=SimpleNamespace(item_features=[feature], history="content"),
        user_features=[],
    )
    return model_card(bundle, facts)


def test_plain_names_are_shown_as_they_are():
    text = card()
    assert "# shop\n" in text
    assert "| item features | `genre` |" in text
    assert "--history i1,i2 -k 10" in text


@pytest.mark.parametrize("place", ["name", "feature", "file", "keys"])
def test_names_of_strangers_are_no_markup(place):
    text = card(**{place: [HOSTILE, "i2"] if place == "keys" else HOSTILE})
    assert text.count("```") == 4  # the two blocks of the card
    assert not any(line.lstrip().startswith("<") for line in text.splitlines())
    assert "\x1b" not in text
    assert "\u202e" not in text
    outside_of_code = "".join(text.split("`")[::2])
    assert "<script" not in outside_of_code.replace(r"\<", "")
