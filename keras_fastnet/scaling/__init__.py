"""Predicts and measures how training scales: `fastnet plan` and `fastnet bench`."""
