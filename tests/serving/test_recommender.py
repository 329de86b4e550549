"""Recommendations against a plain sort of every score, and mistakes in requests."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.errors import ConfigError
from crossbatch.serving.from_run import held_out_user, run_recommender


def brute_force(saved, history, k, *, exclude):
    """Ids by falling score of the trained towers, ties by id."""
    with torch.no_grad():
        items = saved.towers.items(torch.arange(1, saved.dataset.num_items + 1))
        user = saved.towers.users(torch.tensor([history]))[0]
    scores = (user @ items.T).amax(dim=0).tolist()
    pairs = sorted((-score, item) for item, score in enumerate(scores, start=1))
    return [item for _, item in pairs if item not in exclude][:k]


@pytest.mark.parametrize("kind", ["id", "content"])
def test_ranks_by_score_without_the_history(kind, request):
    saved = request.getfixturevalue(f"{kind}_saved")
    bundle = request.getfixturevalue(f"{kind}_bundle")
    history = [3, 1, 2]
    (found,) = bundle.recommend([bundle.item_keys(history)], 10)
    assert [item.id for item in found.items] == brute_force(saved, history, 10, exclude=history)
    assert found.unknown == []
    assert not found.popular
    (with_seen,) = bundle.recommend([bundle.item_keys(history)], 10, exclude_seen=False)
    assert [item.id for item in with_seen.items] == brute_force(saved, history, 10, exclude=[])


def test_each_item_is_named_and_scored(content_bundle, shop):
    (found,) = content_bundle.recommend([shop.item_keys([7, 8])], 5)
    interests = content_bundle.users(torch.tensor([[7, 8]]))[0]  # [K, d]
    for item in found.items:
        scores = interests @ content_bundle.item_vectors[item.id]
        assert item.score == pytest.approx(float(scores.max()), rel=1e-5)
        assert item.interest == int(scores.argmax())
        assert [item.key] == shop.item_keys([item.id])
        assert [item.title] == shop.item_titles([item.id])


@settings(max_examples=25, deadline=None)
@given(
    histories=st.lists(st.lists(st.integers(0, 220), max_size=30), max_size=5),
    k=st.integers(1, 200),
)
def test_users_of_a_batch_do_not_affect_each_other(id_bundle, histories, k):
    """In one call or one by one: the same lists; unknown keys are reported in their order."""
    keyed = [
        [f"x{i}" if not 0 < i <= 200 else id_bundle.item_keys([i])[0] for i in h] for h in histories
    ]
    together = id_bundle.recommend(keyed, k)
    for history, keys, found in zip(histories, keyed, together, strict=True):
        (alone,) = id_bundle.recommend([keys], k)
        assert [item.id for item in found.items] == [item.id for item in alone.items]
        assert found.unknown == [f"x{i}" for i in history if not 0 < i <= 200]
        known = {i for i in history if 0 < i <= 200}
        assert len(found.items) == min(k, 200 - len(known))
        assert not known & {item.id for item in found.items}


def test_only_the_most_recent_items_are_read_but_all_are_left_out(id_bundle):
    long, recent = list(range(1, 41)), list(range(21, 41))
    keys = id_bundle.item_keys(long)
    (found,) = id_bundle.recommend([keys], 200)
    assert {item.id for item in found.items} == set(range(41, 201))
    (short,) = id_bundle.recommend([id_bundle.item_keys(recent)], 200)
    order = [item.id for item in short.items if item.id > 40]
    assert [item.id for item in found.items] == order


def test_an_unknown_user_gets_the_most_popular_items(content_bundle, shop):
    empty, unknown, known = content_bundle.recommend(
        [[], ["nobody"], []], 5, user_features=[None, {}, {"age": 30}]
    )
    counts = np.asarray(shop.item_counts)
    expected = sorted(range(1, 201), key=lambda item: (-counts[item], item))[:5]
    for found in (empty, unknown):
        assert found.popular
        assert [item.id for item in found.items] == expected
        assert [item.score for item in found.items] == pytest.approx(
            [counts[item] / counts.sum() for item in expected], rel=1e-6
        )
    assert unknown.unknown == ["nobody"]
    assert not known.popular, "features are something"


def test_no_users_no_lists(id_bundle):
    assert id_bundle.recommend([], 3) == []


@pytest.mark.parametrize("k", [0, -1, 201, 10**9])
def test_impossible_list_lengths(id_bundle, k):
    with pytest.raises(ConfigError, match=f"k must be 1 to 200 .*, got {k}"):
        id_bundle.recommend([["x"]], k)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"agee": 3}, "did you mean 'age'"),
        ({"shoe": 3}, "its user features are: region, age"),
        ({"age": float("nan")}, "'age' must be .*numeric.*got nan"),
        ({"age": float("inf")}, "'age' must be .*numeric.*got inf"),
        ({"age": "old"}, "'age' must be .*numeric.*got 'old'"),
        ({"age": [1, 2]}, "'age' must be .*numeric"),
        ({"region": ["a"]}, "'region' must be .*categorical"),
        ({"region": {"a": 1}}, "'region' must be .*categorical"),
    ],
)
def test_invalid_features(content_bundle, features, message):
    with pytest.raises(ConfigError, match=message):
        content_bundle.recommend([["x"]], 3, user_features=[features])


def test_one_entry_of_features_for_each_user(content_bundle):
    with pytest.raises(ConfigError, match="one entry for each of 2 histories, got 1"):
        content_bundle.recommend([[], []], 3, user_features=[None])


def test_features_are_encoded_as_in_training(content_saved, content_bundle, shop):
    """Raw values in, and the vector of a training user with these values comes out."""
    table = shop.user_features["region"]
    encoder = content_bundle.user_encoders["region"]
    age = content_bundle.user_encoders["age"].settings
    history = torch.tensor([[5, 9]])
    for user in (0, 7, 33):
        region = encoder.vocabulary[int(table.values[user]) - 1]
        scaled, missing = shop.user_features["age"].values[user].tolist()
        given = {"region": region, "age": None if missing else scaled * age["std"] + age["mean"]}
        found = content_bundle.users(history, [given])
        with torch.no_grad():
            expected = content_saved.towers.users(history, torch.tensor([user]))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    unheard = content_bundle.users(history, [{"region": "moon", "age": "33"}])
    assert torch.isfinite(unheard).all()


def test_similar_items_are_the_nearest_by_angle(content_bundle):
    vectors = content_bundle.item_vectors[1:].double()
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    cosines = unit @ unit[41]
    expected = [i + 1 for i in cosines.argsort(descending=True).tolist() if i != 41][:6]
    found = content_bundle.similar(content_bundle.item_keys([42])[0], 6)
    assert [item.id for item in found] == expected
    assert found[0].score == pytest.approx(float(cosines[expected[0] - 1]), rel=1e-5)


def test_similar_mistakes(id_bundle):
    with pytest.raises(ConfigError, match="'nobody' is no item"):
        id_bundle.similar("nobody", 3)
    with pytest.raises(ConfigError, match="k must be 1 to 199"):
        id_bundle.similar(id_bundle.item_keys([1])[0], 200)


def test_a_held_out_user_of_a_run(content_saved):
    history, targets, profiles = held_out_user(content_saved, 1)
    batch = next(content_saved.dataset.eval_batches("test", history_length=20))
    assert history.tolist() == [item for item in batch.history[1].tolist() if item]
    assert targets == batch.targets[1].tolist()
    found = run_recommender(content_saved).interests(torch.from_numpy(history)[None], profiles)
    with torch.no_grad():
        expected = content_saved.towers.users(batch.history[1:2], batch.user_ids[1:2])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_threads_do_not_mix_their_users(content_bundle):
    """The towers are shared; each request's features must stay its own."""
    from concurrent.futures import ThreadPoolExecutor

    history = torch.tensor([[5, 9]])
    ages = list(range(20, 80))
    expected = [content_bundle.users(history, [{"age": age}]) for age in ages]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda age: content_bundle.users(history, [{"age": age}]), ages))
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine, other)
