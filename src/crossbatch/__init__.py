"""Two-tower recommenders trained with in-batch, mixed and cross-batch negatives."""
