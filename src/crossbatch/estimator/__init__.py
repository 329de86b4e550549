"""`Recommender`: from a data frame to recommendations, with the interface of an estimator."""

from crossbatch.estimator.recommender import Recommender

__all__ = ["Recommender"]
