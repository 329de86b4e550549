"""Other libraries on the same data, each in its own environment."""
