"""Forming a cluster: finding its description, and meeting the other workers.

In reading order: `cluster_spec` (addresses and rank), the readers of the environment
(`slurm`, `kubernetes`, `mpi`, `environment`), `discovery` (the decision between them),
`rendezvous` (all workers meet), `start` (TensorFlow's server starts), `loopback` (which
keeps the server to this machine). `ports` and `gpus` choose and divide what the workers
of a host share.

Only `discovery` and `start` import TensorFlow.
"""
