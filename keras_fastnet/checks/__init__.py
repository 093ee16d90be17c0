"""Checks that training on a cluster's workers equals training on one device."""

from keras_fastnet.checks.comparison import Verdict, check
from keras_fastnet.checks.subject import Subject

__all__ = ["Subject", "Verdict", "check"]
