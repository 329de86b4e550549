"""What all tests share."""

import torch

# Two workers on two cores: more threads would only wait for each other.
torch.set_num_threads(1)
