"""TensorFlow Recommenders' `Retrieval` task (in-batch softmax), on our samples.

TFRS has losses and no towers: these are Keras layers, as in its tutorials. The mean of the history
and a dense layer are YouTube DNN; a GRU is GRU4Rec (tutorial "retrieval using a sequential model").
Both use what TFRS has for in-batch negatives (correction by the sampling probability, removal of
accidental hits, temperature) on normalised vectors.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

from peers.exchange import Task

OPTIONS = {"temperature": 0.1, "normalize": True, "remove_accidental_hits": True, "tied": True}
TOWERS = {
    "youtube_dnn": lambda dim: [
        tf.keras.layers.GlobalAveragePooling1D(),
        tf.keras.layers.Dense(dim),
    ],
    "gru4rec": lambda dim: [tf.keras.layers.GRU(dim)],
}
OPTIMIZERS = {
    "adam": tf.keras.optimizers.legacy.Adam,
    "adagrad": tf.keras.optimizers.legacy.Adagrad,
}


class TwoTower(tfrs.Model):  # type: ignore[misc]
    """A history tower over the item table, which is the candidate tower."""

    def __init__(self, table: tf.keras.layers.Layer, tower: tf.keras.Model, q: np.ndarray):
        super().__init__()
        self.table, self.tower = table, tower
        self.probabilities = tf.constant(q, dtype=tf.float32)
        self.task = tfrs.tasks.Retrieval(
            temperature=OPTIONS["temperature"],
            remove_accidental_hits=OPTIONS["remove_accidental_hits"],
            # TFRS sums over the batch by default; the mean makes learning rates comparable
            loss=tf.keras.losses.CategoricalCrossentropy(from_logits=True),
        )

    def users(self, history: tf.Tensor) -> tf.Tensor:
        """`[B, L]` → `[B, d]`."""
        return tf.math.l2_normalize(self.tower(history), axis=1)

    def items(self, ids: tf.Tensor) -> tf.Tensor:
        """`[N]` → `[N, d]`."""
        return tf.math.l2_normalize(self.table(ids), axis=1)

    def compute_loss(
        self, inputs: tuple[tf.Tensor, tf.Tensor], training: bool = False
    ) -> tf.Tensor:
        """The task's loss of a batch; called by Keras."""
        history, ids = inputs
        return self.task(
            self.users(history),
            self.items(ids),
            candidate_sampling_probability=tf.gather(self.probabilities, ids),
            candidate_ids=ids,
            compute_metrics=False,
        )


def main() -> None:
    task = Task.from_command_line()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(task.seed)
    table = tf.keras.layers.Embedding(task.num_items + 1, task.dim, mask_zero=True)
    tower = tf.keras.Sequential([table, *TOWERS[task.model](task.dim)])
    model = TwoTower(table, tower, task.load("sampler_law"))
    model.compile(optimizer=OPTIMIZERS[task.optimizer](task.lr))
    train_step = tf.function(model.train_step)
    everything = tf.range(task.num_items + 1)
    task.train(
        lambda history, ids: train_step((tf.constant(history), tf.constant(ids))),
        lambda history: model.users(tf.constant(history)).numpy(),
        lambda: model.items(everything).numpy(),
        packages=("tensorflow-recommenders", "tensorflow-cpu", "tf-keras", "numpy"),
        options=OPTIONS,
    )


if __name__ == "__main__":
    main()
