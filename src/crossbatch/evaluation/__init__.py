"""Full-corpus evaluation: metrics, intervals, slices, baselines, drift and gradient error."""

from crossbatch.bootstrap import Interval, mean_interval, paired_difference
from crossbatch.evaluation.evaluator import evaluate, evaluate_recommender
from crossbatch.evaluation.list_measures import BANDS, Popularity
from crossbatch.evaluation.recommenders import Recommender, encode_items, model_recommender
from crossbatch.evaluation.result import Evaluation

__all__ = [
    "BANDS",
    "Evaluation",
    "Interval",
    "Popularity",
    "Recommender",
    "encode_items",
    "evaluate",
    "evaluate_recommender",
    "mean_interval",
    "model_recommender",
    "paired_difference",
]
