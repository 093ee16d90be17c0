"""Forming a cluster and keeping it together.

In reading order: `cluster_spec` (addresses and rank), the readers of the environment
(`environment`, `mpi`), `discovery` (the decision between them),
`rendezvous` (all workers meet), `start` (TensorFlow's server starts), `flight_recorder`
(which worker is late, and texts that the workers compare). `ports` and `gpus` reserve,
guard and divide what the workers of a host share.

Only `discovery`, `start` and `flight_recorder` import TensorFlow.
"""
