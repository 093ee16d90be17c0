"""Runs the `fastnet` command within the process of a test."""

from keras_fastnet.cli import main


def exit_code(words):
    """Returns the exit code, also where `argparse` ends the program."""
    try:
        return main(words)
    except SystemExit as error:
        return error.code
