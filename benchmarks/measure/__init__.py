"""Shared by the benchmarks: shapes, the lower bound, interleaved workers, tables of ratios."""
