"""Two-tower models: item tower, user towers, and the pair. Needs torch and nothing else.

For example:

    model = build_model("mind", num_items, dim=64, tower={"interests": 4})
    u, v = model(history, item_ids)
"""

from .build import ITEM_TOWERS, MODELS, build_model
from .comirec_sa import ComiRecSA
from .embedding import EmbeddingTable
from .features import FEATURE_ENCODERS, FeatureTable
from .gru4rec import GRU4Rec
from .history import History
from .item_tower import ItemTower, mean_id_vector
from .mind import MIND
from .own_towers import Inputs, allow_code
from .recent_items import RecentItems
from .sasrec import SASRec
from .text_towers import TextEncoder
from .two_tower import TwoTower
from .youtube_dnn import YouTubeDNN

__all__ = [
    "FEATURE_ENCODERS",
    "ITEM_TOWERS",
    "MIND",
    "MODELS",
    "ComiRecSA",
    "EmbeddingTable",
    "FeatureTable",
    "GRU4Rec",
    "History",
    "Inputs",
    "ItemTower",
    "RecentItems",
    "SASRec",
    "TextEncoder",
    "TwoTower",
    "YouTubeDNN",
    "allow_code",
    "build_model",
    "mean_id_vector",
]
