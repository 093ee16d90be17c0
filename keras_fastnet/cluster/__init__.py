"""What a process can know of its cluster from the environment, without TensorFlow.

`strategies/finding.py` asks in this order, and takes the first that answers:

1. the `cluster_resolver` that was given to the strategy
2. the variable `TF_CONFIG`
3. MPI
4. Slurm
5. a Kubernetes Indexed Job
6. nobody: the training has one process
"""
