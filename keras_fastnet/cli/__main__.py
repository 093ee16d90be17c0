"""Runs the `fastnet` command as `python -m keras_fastnet.cli`."""

import sys

from keras_fastnet.cli import main

sys.exit(main())
