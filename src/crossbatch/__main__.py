"""`python -m crossbatch`, which `torchrun -m` needs."""

from crossbatch.cli import main

main()
