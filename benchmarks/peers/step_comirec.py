"""A step like that of ComiRec's code: ids alone, `sampled_softmax_loss`, TensorFlow 1's Adam.

Written for this benchmark from the paper's description: a table of items, the masked mean of the
history through a dense layer, 1280 log-uniform negatives shared by the batch, and
`tf.compat.v1.train.AdamOptimizer`, which moves every row of the table at every step.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from peers.samples import DIM, NEGATIVES, Samples
from peers.serve import Step, serve


def prepared(samples: Samples) -> Step:
    tf.keras.utils.set_random_seed(0)
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        rows = samples.num_items + 1
        history = v1.placeholder(tf.int64, [None, samples.history.shape[1]])
        items = v1.placeholder(tf.int64, [None])
        table = v1.get_variable("items", [rows, DIM])
        bias = v1.get_variable("bias", [rows], initializer=v1.zeros_initializer(), trainable=False)
        kernel, offset = v1.get_variable("kernel", [DIM, DIM]), v1.get_variable("offset", [DIM])
        real = tf.cast(tf.not_equal(history, 0), tf.float32)[:, :, None]
        vectors = tf.nn.embedding_lookup(table, history) * real
        mean = tf.reduce_sum(vectors, 1) / (tf.reduce_sum(real, 1) + 1e-9)
        users = tf.matmul(mean, kernel) + offset
        losses = v1.nn.sampled_softmax_loss(
            table, bias, items[:, None], users, NEGATIVES, num_classes=rows
        )
        update = v1.train.AdamOptimizer(0.001).minimize(tf.reduce_mean(losses))
        start = v1.global_variables_initializer()
    limits = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    session = v1.Session(graph=graph, config=limits)
    session.run(start)
    batches = samples.batches()

    def step() -> None:
        rows = next(batches)
        feed = {history: samples.history[rows], items: samples.items[rows]}
        session.run(update, feed)

    return step


def main() -> None:
    samples = Samples.from_command_line()
    serve({"ComiRec's step, uniform": lambda: prepared(samples)}, ("tensorflow-cpu", "numpy"))


if __name__ == "__main__":
    main()
