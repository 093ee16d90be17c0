"""`fastnet run`: runs a script in several local workers."""

import argparse

from keras_fastnet.cli.option_types import (
    add_transport,
    add_workers,
    has_workers_option,
    hosts,
    integer,
    number,
)
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.hosts import DEFAULT_PORT, run_on_hosts

_DESCRIPTION = """\
Run a Keras script in several TensorFlow workers on this machine, or on several
machines with --nnodes.

Each worker runs `python script.py args…` with TF_CONFIG set, so that
tf.distribute.MultiWorkerMirroredStrategy() and keras_fastnet.TorusStrategy() find
each other. CPUs and GPUs are divided among the workers. The command shows the output
of worker 0, and the warnings and errors of the others. When a worker fails, it ends
all workers and names the one that failed first. With --max-restarts it then starts all
workers again, and keras_fastnet.callbacks.BackupAndRestore in the script resumes from
the newest backup.
"""

_EPILOG = """\
examples:
  fastnet run --workers 4 train.py --epochs 10
      options after the script are passed to the script
  fastnet run --workers 2 -m my_package.train --epochs 10
      a module instead of a script
  fastnet run --workers 4 --log-dir logs train.py
      keep everything that each worker writes in logs/rank-0.log, …
  fastnet run --workers 4 --max-restarts 3 --report report.json train.py
      start all workers again after a failure, and write what happened to report.json
  fastnet run --workers 4 --max-restarts 10 --min-workers 2 train.py
      go on with three or two workers if the others keep failing, or if
      `fastnet scale 3` asks for it
  fastnet run --workers 4 --nnodes 2 --node-rank 0 --rendezvous host0:29400 train.py
      eight workers on two machines: the same on the other one, with --node-rank 1
  fastnet run --hosts a:4,b:4 train.py
      the same over ssh, started on one machine
  fastnet run --workers 2 --gpus-per-worker 0 train.py
      train on the CPU although there are GPUs
  fastnet run --workers 4 --transport tensorflow train.py
      gradients over gRPC, although keras-fastnet[mpi] is installed
  fastnet run --workers 4 --dry-run train.py
      show the environment of each worker and start nothing
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet run`."""
    parser = subparsers.add_parser(
        "run",
        help="run a script in several local workers",
        usage="fastnet run --workers N [options] (script.py | -m module) [args…]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_workers(parser, "number of workers, on this machine")
    parser.add_argument(
        "--port",
        type=integer(at_least=1, example=20_000),
        metavar="BASE",
        help="use ports BASE to BASE+N-1 (default: any free ports)",
    )
    parser.add_argument(
        "--nnodes",
        type=integer(at_least=1, example=2),
        default=1,
        metavar="K",
        help="number of machines, on each of which this command is run "
        "(default: %(default)d)",
    )
    parser.add_argument(
        "--hosts",
        type=hosts,
        metavar="A:N,B:M",
        help="start N workers on host A and M on host B over ssh, instead of --workers",
    )
    parser.add_argument(
        "--ssh",
        default="ssh",
        metavar="CMD",
        help="with --hosts: command that runs a command on a host (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--node-rank",
        type=integer(at_least=0, example=0),
        metavar="R",
        help="with --nnodes: number of this machine, from 0",
    )
    parser.add_argument(
        "--rendezvous",
        metavar="HOST:PORT",
        help="with --nnodes: an address of machine 0 with a free port, the same on "
        f"all machines (default with --hosts: the first host and port {DEFAULT_PORT})",
    )
    add_transport(parser)
    parser.add_argument(
        "--threads-per-worker",
        type=integer(at_least=1, example=2),
        metavar="T",
        help="threads in each pool of a worker (default: the available CPUs divided "
        "by N; TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS and OMP_NUM_THREADS "
        "override this default if set)",
    )
    parser.add_argument(
        "--gpus-per-worker",
        type=integer(at_least=0, example=1),
        metavar="G",
        help="GPUs for each worker, 0 for the CPU (default: the visible GPUs divided "
        "by N)",
    )
    parser.add_argument(
        "--all-output", action="store_true", help="show the output of every worker"
    )
    parser.add_argument(
        "--tf-logs",
        action="store_true",
        help="show TensorFlow's information lines, such as those at its start",
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        help="write everything that worker r prints to DIR/rank-r.log",
    )
    parser.add_argument(
        "--max-restarts",
        type=integer(at_least=0, example=3),
        default=0,
        metavar="N",
        help="start all workers again after a failure, up to N times; an error that "
        "comes a second time at the same update ends the run (default: %(default)d)",
    )
    parser.add_argument(
        "--min-workers",
        type=integer(at_least=1, example=2),
        metavar="M",
        help="a worker that fails twice without a new backup in between is left out, "
        "down to M workers, and `fastnet scale` may ask for as few; the global batch "
        "stays (default: all workers are needed)",
    )
    parser.add_argument(
        "--max-workers",
        type=integer(at_least=1, example=4),
        metavar="X",
        help="`fastnet scale` may ask for up to X workers; CPUs and GPUs are divided "
        "by X (default: N)",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write a JSON object about all starts: who failed, when and why, the last "
        "lines of every worker, and the backups used",
    )
    parser.add_argument(
        "--grace-seconds",
        type=number(at_least=0.0, example=launcher.DEFAULT_GRACE_SECONDS),
        default=launcher.DEFAULT_GRACE_SECONDS,
        metavar="S",
        help="seconds between SIGTERM and SIGKILL when workers are ended "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--independent",
        action="store_true",
        help="let the script train without a strategy: each worker then trains a "
        "separate model (default: its first `fit` raises an error)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print each worker's environment and command, and start nothing",
    )
    # Both take all words that follow, also those that start with a dash.
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="module …",
        help="run a module, with the arguments that follow it",
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="script.py …",
        help="the script to run, with the arguments that follow it",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet run` and returns its exit code."""
    command = list(arguments.script)
    if arguments.module is not None:
        # argparse stops at a "--" among the module's arguments.
        command = ["-m", *arguments.module, *command]
    elif command[:1] == ["--"]:
        del command[0]
    options = {
        "port": arguments.port,
        "threads_per_worker": arguments.threads_per_worker,
        "gpus_per_worker": arguments.gpus_per_worker,
        "all_output": arguments.all_output,
        "tf_logs": arguments.tf_logs,
        "log_dir": arguments.log_dir,
        "max_restarts": arguments.max_restarts,
        "min_workers": arguments.min_workers,
        "max_workers": arguments.max_workers,
        "report": arguments.report,
        "grace_seconds": arguments.grace_seconds,
        "independent": arguments.independent,
    }
    if arguments.rendezvous is not None:
        options["rendezvous"] = arguments.rendezvous
    if arguments.hosts is not None:
        _check_for_hosts(arguments)
        return run_on_hosts(arguments.hosts, command, options, ssh=arguments.ssh)
    if arguments.workers is None:
        raise UsageError(
            "--workers N must stand before the script. Received: "
            + ("it after the script" if has_workers_option(command) else "no --workers")
            + ". Write, for example, `fastnet run --workers 2 train.py`."
        )
    return launcher.run(
        arguments.workers,
        command,
        nnodes=arguments.nnodes,
        node_rank=arguments.node_rank,
        dry_run=arguments.dry_run,
        transport=arguments.transport,
        **options,
    )


def _check_for_hosts(arguments: argparse.Namespace) -> None:
    for given, option in (
        (arguments.workers is not None, "--workers"),
        (arguments.nnodes != 1, "--nnodes"),
        (arguments.node_rank is not None, "--node-rank"),
        (arguments.dry_run, "--dry-run"),
        (arguments.transport == "mpi", "--transport mpi"),
    ):
        if given:
            raise UsageError(
                f"{option} must not be passed with --hosts, which starts `fastnet run` "
                f"on every host. Received: both. Leave {option} out."
            )
