"""What other libraries do with the same data, each in an environment of its own."""
