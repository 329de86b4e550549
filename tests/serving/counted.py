"""Recall@50 of the test users counted by hand, of a recommender and of a running server."""

import numpy as np


def users_of(dataset):
    """The history and the targets of each test user, as item ids."""
    for batch in dataset.eval_batches("test", history_length=20):
        for history, targets in zip(batch.history, batch.targets, strict=True):
            yield history[history > 0].numpy(), set(targets.tolist())


def recall(recommender, dataset):
    histories, targets = zip(*users_of(dataset), strict=True)
    lists = recommender.rank(list(histories), 50, exclude_seen=False).top.item_ids
    pairs = zip(lists.tolist(), targets, strict=True)
    return float(np.mean([len(wanted & set(ranked)) / len(wanted) for ranked, wanted in pairs]))


def served_recall(server, dataset):
    found = []
    for history, wanted in users_of(dataset):
        body = {"history": dataset.item_keys(history), "k": 50, "exclude_seen": False}
        items = server.ask("/recommend", body).json["items"]
        ranked = dataset.item_ids([item["id"] for item in items])
        found.append(len(wanted & set(ranked.tolist())) / len(wanted))
    return float(np.mean(found))
