"""Global batches, each replica's share of them, and the epochs that they make."""
