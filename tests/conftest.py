"""Settings of all tests."""

import torch
from hypothesis import HealthCheck, settings

# pytest-xdist runs one worker per core: more threads would wait for each other.
torch.set_num_threads(1)

# No test may depend on the speed of the machine.
settings.register_profile("any_speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_speed")
