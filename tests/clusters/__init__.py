"""Real schedulers on this machine, for the tests."""
