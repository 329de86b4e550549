"""Prepared datasets: memory-mapped arrays, and batches of tensors from them."""
