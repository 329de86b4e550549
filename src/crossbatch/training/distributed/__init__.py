"""Training on several processes or machines: `torchrun … -m crossbatch train …`.

The contract: R ranks that share a batch have the loss, gradients, bank and metrics that one process
has with that batch, up to float rounding. `train.batch_size` is the batch of all ranks together, so
a recipe means the same run on any number of them, and a run can be resumed with another number.
"""
