"""Proof, on one's own cluster, that N workers equal one device."""

from keras_fastnet.checks.run import check
from keras_fastnet.checks.subject import Subject
from keras_fastnet.checks.verdict import Verdict

__all__ = ["Subject", "Verdict", "check"]
