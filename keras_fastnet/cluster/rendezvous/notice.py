"""Notices to a user who waits."""

import logging
import time

from keras_fastnet.cluster.rendezvous import limits

_LOG = logging.getLogger(__name__)


class Notice:
    """Logs what is waited for, now and then."""

    def __init__(self) -> None:
        self._next = time.monotonic() + limits.FIRST_NOTICE_SECONDS

    def give(self, text: str) -> None:
        """Logs it if it is time to."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + limits.NOTICE_SECONDS
            _LOG.warning("%s", text)
