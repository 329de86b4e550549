"""Vectors that other libraries return are ranked for the users they belong to."""

from types import SimpleNamespace

import numpy as np
import torch

from quality import vector_recommender


class Users:
    """A dataset whose users come in two batches, not by id."""

    def eval_batches(self, split, **options):
        assert split == "valid"
        for ids in ([7, 3], [5]):
            yield SimpleNamespace(user_ids=torch.tensor(ids))


def test_vectors_are_found_by_user():
    items = np.array([[0.0, 0.0, 0.0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    users = np.array([[9, 2, 1], [2, 9, 1], [1, 2, 9]])  # of users 7, 3 and 5
    recommend = vector_recommender(items, users, Users(), "valid")
    batch = SimpleNamespace(user_ids=torch.tensor([5, 7]))
    assert recommend(batch, 3, None).tolist() == [[3, 2, 1], [1, 2, 3]]
    one = SimpleNamespace(user_ids=torch.tensor([3]))  # searched for again, without what it has had
    assert recommend(one, 2, torch.tensor([[2]])).tolist() == [[1, 3]]
