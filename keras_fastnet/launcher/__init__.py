"""Starts worker processes on one machine and supervises them until they end."""
