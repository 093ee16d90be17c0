"""Lets `python -m keras_fastnet.cli` stand for `fastnet`."""

import sys

from keras_fastnet.cli import main

sys.exit(main())
