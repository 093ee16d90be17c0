"""Measures and predicts how training scales: `fastnet bench` and `fastnet plan`."""
