"""TensorFlow Recommenders: the `Retrieval` task on the benchmark's towers.

As ours does, the task corrects for popularity and removes accidental hits. Adagrad is the optimiser
of its tutorials and has a sparse update; Adam walks the whole table. The compiled `train_step` is
called directly (`model.fit` costs as much), on batches that come shuffled from `tf.data`.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from functools import partial

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

from peers.samples import BATCH_SIZE, DIM, HIDDEN, Samples
from peers.serve import Step, serve

OPTIMIZERS = {"Adagrad": tf.keras.optimizers.Adagrad, "Adam": tf.keras.optimizers.Adam}


def mlp() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Dense(HIDDEN, activation="relu"), layers.Dense(DIM)])


class TwoTower(tfrs.Model):  # type: ignore[misc]
    """Id and category vectors of items, or their mean over the history → MLP."""

    def __init__(self, samples: Samples) -> None:
        super().__init__()
        rows = samples.num_items + 1
        counts = np.bincount(samples.items, minlength=rows) + 1.0
        self.probabilities = tf.constant(counts / counts.sum(), dtype=tf.float32)
        self.ids = tf.keras.layers.Embedding(rows, DIM, mask_zero=True)
        self.categories = tf.keras.layers.Embedding(samples.num_categories, DIM)
        self.pooling = tf.keras.layers.GlobalAveragePooling1D()
        self.user, self.item = mlp(), mlp()
        self.task = tfrs.tasks.Retrieval(remove_accidental_hits=True)

    def compute_loss(self, inputs: tuple[tf.Tensor, ...], training: bool = False) -> tf.Tensor:
        """The task's loss of a batch; called by Keras."""
        history, their_categories, items, categories = inputs
        seen = self.joined(history, their_categories)
        users = self.user(self.pooling(seen, mask=self.ids.compute_mask(history)))
        return self.task(
            users,
            self.item(self.joined(items, categories)),
            candidate_sampling_probability=tf.gather(self.probabilities, items),
            candidate_ids=items,
            compute_metrics=False,
        )

    def joined(self, items: tf.Tensor, categories: tf.Tensor) -> tf.Tensor:
        """`[*]` and `[*]` → `[*, 2 d]`."""
        return tf.concat([self.ids(items), self.categories(categories)], axis=-1)


def prepared(samples: Samples, optimizer: str) -> Step:
    tf.keras.utils.set_random_seed(0)
    model = TwoTower(samples)
    model.compile(optimizer=OPTIMIZERS[optimizer](0.001))
    categories = samples.categories
    columns = (
        samples.history,
        categories[samples.history],
        samples.items,
        categories[samples.items],
    )
    loader = tf.data.Dataset.from_tensor_slices(columns).shuffle(len(samples.items)).repeat()
    batches = loader.batch(BATCH_SIZE, drop_remainder=True)
    iterator, train_step = iter(batches), tf.function(model.train_step)
    return lambda: train_step(next(iterator))


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    samples = Samples.from_command_line()
    rows = {
        "TFRS, Adagrad": partial(prepared, samples, "Adagrad"),
        "TFRS, Adam": partial(prepared, samples, "Adam"),
    }
    serve(rows, ("tensorflow-recommenders", "tensorflow-cpu", "tf-keras", "numpy"))


if __name__ == "__main__":
    main()
