"""What the benchmarks share: shapes, the floor, workers that take turns, tables of ratios."""
