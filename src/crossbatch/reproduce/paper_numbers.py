"""What the paper reports for Amazon-Books, to compare with our numbers.

J. Wang, J. Zhu, X. He: Cross-Batch Negative Sampling for Training Two-Tower Recommenders, SIGIR
2021. Metrics in per cent; its NDCG is our `ndcg_comirec`.
"""

from __future__ import annotations

METRICS = ("recall@20", "ndcg_comirec@20", "recall@50", "ndcg_comirec@50")
COLUMNS = ("seconds_per_1000_steps", "convergence_minutes", *METRICS)
_ROWS = {
    ("youtube_dnn", "uniform"): (26.57, 135.97, 4.205, 7.174, 7.028, 11.741),
    ("youtube_dnn", "in_batch"): (16.27, 62.91, 4.070, 6.962, 6.908, 11.509),
    ("youtube_dnn", "mixed"): (24.73, 138.50, 4.113, 7.050, 6.929, 11.535),
    ("youtube_dnn", "cross_batch"): (20.38, 62.50, 4.237, 7.325, 7.084, 11.881),
    ("gru4rec", "uniform"): (96.08, 326.68, 4.237, 7.360, 6.895, 11.554),
    ("gru4rec", "in_batch"): (35.09, 91.81, 3.912, 6.674, 6.425, 10.724),
    ("gru4rec", "mixed"): (58.69, 464.62, 4.110, 7.178, 6.553, 11.183),
    ("gru4rec", "cross_batch"): (40.15, 167.31, 4.257, 7.479, 7.044, 12.032),
    ("mind", "uniform"): (37.51, 180.66, 4.137, 6.881, 7.008, 11.400),
    ("mind", "in_batch"): (27.87, 104.50, 4.140, 7.009, 6.894, 11.363),
    ("mind", "mixed"): (36.82, 205.57, 4.576, 7.596, 7.135, 11.603),
    ("mind", "cross_batch"): (31.65, 146.14, 4.799, 8.105, 7.689, 12.671),
}
# Times and metrics by model and strategy.
TABLE1 = {key: dict(zip(COLUMNS, row, strict=True)) for key, row in _ROWS.items()}

# Recall@50 and NDCG@50 by bank size M and model.
TABLE2: dict[int, dict[str, tuple[float, float]]] = {
    0: {"youtube_dnn": (6.908, 11.509), "gru4rec": (6.425, 10.724), "mind": (6.894, 11.363)},
    128: {"youtube_dnn": (7.032, 11.877), "gru4rec": (6.518, 10.993), "mind": (7.003, 11.431)},
    512: {"youtube_dnn": (7.175, 12.085), "gru4rec": (6.679, 11.229), "mind": (7.102, 11.66)},
    1152: {"youtube_dnn": (7.182, 12.055), "gru4rec": (6.845, 11.681), "mind": (7.463, 12.309)},
    2432: {"youtube_dnn": (7.084, 11.881), "gru4rec": (7.044, 12.032), "mind": (7.689, 12.671)},
    4992: {"youtube_dnn": (6.988, 11.807), "gru4rec": (7.394, 12.423), "mind": (7.474, 12.303)},
    10112: {"youtube_dnn": (7.001, 11.772), "gru4rec": (6.903, 11.810), "mind": (7.268, 11.939)},
}
