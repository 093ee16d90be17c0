"""Starts worker processes on one machine, and watches them until they end."""
