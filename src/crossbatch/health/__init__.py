"""Is everything in order?  Checks of the machine, of datasets, runs and bundles, with remedies."""

from crossbatch.health.checks import CHECKS, examine
from crossbatch.health.finding import Finding, Level

__all__ = ["CHECKS", "Finding", "Level", "examine"]
