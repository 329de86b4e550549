"""From a raw log to a dataset folder.

The stages in the order they run; `pipeline.prepare` calls them:

1. `read_log` reads the source into a `staged_log`: numbers on disk;
2. `filtering` drops rare items and users;
3. `numbering` gives items and users their final ids;
4. `sequences` sorts each user's interactions by time, out of memory;
5. `splits` divides the sequences into training, validation and test parts;
6. `sampling_distribution` computes how often each item is a positive of a training batch;
7. `pipeline` writes keys, titles, features and the manifest.

`local_engine` runs stages 1 to 4 on this machine, `spark_engine` on a Spark cluster.
"""

from __future__ import annotations

from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.data.prepare.pipeline import prepare

__all__ = ["PrepareOptions", "prepare"]
