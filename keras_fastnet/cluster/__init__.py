"""Forming a cluster and keeping it together.

In reading order: `cluster_spec` (addresses and rank), `environment` and `mpi` (the
launcher of this process), `discovery` (chooses a description), `rendezvous` (workers
meet), `start` (TensorFlow's server), `peer_monitor` (finds late workers, and
exchanges texts that workers compare). `ports` and `gpus` divide the ports and GPUs of a
host.

Only `discovery`, `start` and `peer_monitor` import TensorFlow.
"""
