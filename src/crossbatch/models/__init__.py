"""Two-tower models: item tower, user towers, and the pair. Needs torch and nothing else.

model = build_model("mind", num_items, dim=64, tower={"interests": 4})
u, v = model(history, item_ids)
"""

from .build import MODELS, build_model
from .embedding import EmbeddingTable
from .features import FEATURE_ENCODERS, FeatureTable
from .item_tower import ItemTower
from .two_tower import TwoTower
from .youtube_dnn import YouTubeDNN

__all__ = [
    "FEATURE_ENCODERS",
    "MODELS",
    "EmbeddingTable",
    "FeatureTable",
    "ItemTower",
    "TwoTower",
    "YouTubeDNN",
    "build_model",
]
