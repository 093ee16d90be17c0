"""Forming a cluster and keeping it together.

In reading order: `cluster_spec` (addresses and rank), `environment` and `mpi` (who
started this process), `discovery` (which description to take), `rendezvous` (workers
meet), `start` (TensorFlow's server), `flight_recorder` (which worker is late, and texts
that workers compare). `ports` and `gpus` divide what workers of a host share.

Only `discovery`, `start` and `flight_recorder` import TensorFlow.
"""
