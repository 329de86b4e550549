"""From a raw log to a dataset folder.

The stages in the order they run; `pipeline.prepare` calls them:

1. `staged_log` reads the source into numbers on disk;
2. `numbering` drops rare items and users and gives the others their final ids;
3. `sequences` sorts each user's interactions by time, out of memory;
4. `splits` divides the sequences into training, validation and test parts;
5. `pipeline` writes the parts and the manifest, `content` keys, titles and features.

`write_shards` then divides the training sequences, where asked.
`local_engine` runs stages 1 to 3 on this machine, `spark_engine` on a Spark cluster.
`append` adds further days to a dataset; `rest` keeps what it needs of the days before.
"""

from __future__ import annotations

from crossbatch.data.prepare.append import append
from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.data.prepare.pipeline import prepare

__all__ = ["PrepareOptions", "append", "prepare"]
