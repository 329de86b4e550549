"""Two-tower models: item tower, user towers, and the pair. Needs torch and nothing else.

For example:

    model = build_model("mind", num_items, dim=64, tower={"interests": 4})
    u, v = model(history, item_ids)
"""

from .build import MODELS, build_model
from .comirec_sa import ComiRecSA
from .embedding import EmbeddingTable
from .features import FEATURE_ENCODERS, FeatureTable
from .gru4rec import GRU4Rec
from .history import History
from .item_tower import ItemTower
from .mind import MIND
from .recent_items import RecentItems
from .sasrec import SASRec
from .two_tower import TwoTower
from .youtube_dnn import YouTubeDNN

__all__ = [
    "FEATURE_ENCODERS",
    "MIND",
    "MODELS",
    "ComiRecSA",
    "EmbeddingTable",
    "FeatureTable",
    "GRU4Rec",
    "History",
    "ItemTower",
    "RecentItems",
    "SASRec",
    "TwoTower",
    "YouTubeDNN",
    "build_model",
]
