"""Proof that both ends of a connection have the same token, which is never sent.

The end that connected sends a random nonce and the other end answers with its own.
Then each sends a code (HMAC-SHA256 with the token as the key) over both nonces: first
the end that connected, so that a stranger who connects gets no code to guess tokens
with. Every later message carries a code over its number and direction, so none can
be changed, repeated or inserted.
"""

import hmac
import re
import secrets
from typing import Any

from keras_fastnet.errors import ClusterError

SHORTEST_TOKEN = 16
_CODE_BYTES = 64  # in hexadecimal
_NONCE = re.compile("[0-9a-f]{32}")

NO_TOKEN_AT_RANK_0 = "rank 0 has no token"
# Why rank 0 refuses a worker, as sent; and for the error, with that worker's rank.
REFUSALS = {
    "the worker has no token": "rank 0 has one and rank {rank} has none",
    "the worker has another token": "rank 0 and rank {rank} have different ones",
    NO_TOKEN_AT_RANK_0: "rank {rank} has one and rank 0 has none",
}


def checked_token(token: str | None) -> str | None:
    """Returns the token if it is long enough not to be guessed.

    Args:
        token: The value of `FASTNET_TOKEN`; `None` if it is not set.

    Raises:
        ClusterError: If it is too short.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ClusterError(
            f"FASTNET_TOKEN must have at least {SHORTEST_TOKEN} characters. Received: "
            f"{len(token)}. Set the output of `openssl rand -hex 32` on all workers, "
            "or unset it on all."
        )
    return token


def token_error(refusal: str, rank: int) -> str:
    """Returns the error about workers that do not have the same token.

    Args:
        refusal: A key of `REFUSALS`.
        rank: The rank of the worker that is refused.
    """
    return (
        "All workers must have the same FASTNET_TOKEN, or none must have one. "
        f"Received: {REFUSALS[refusal].format(rank=rank)}. Set the same value on all "
        "workers, or unset it on all, and start all workers again."
    )


class TokenProof:
    """One end's part of the proof, and the codes of its messages.

    Args:
        token: The token.
        rank: This end's rank, for the other end's messages.
        dialed: Whether this end has connected to the other.

    Attributes:
        complete: Whether the other end has proved that it has the token.
    """

    def __init__(self, token: str, rank: int, dialed: bool):
        self.complete = False
        self._rank = rank
        self._key = token.encode("utf-8", "surrogateescape")
        self._dialed = dialed
        self._own_nonce = secrets.token_hex(16)
        self._other_nonce = ""
        self._sent = self._received = 0

    def challenge(self) -> dict[str, Any]:
        """Returns the message with this end's nonce."""
        return {"nonce": self._own_nonce, "rank": self._rank}

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the answer to a message of the proof; `None` if there is none.

        Args:
            message: The message.

        Raises:
            ValueError: If it is not the next message of the proof.
            PermissionError: If the other end has another token.
        """
        match message:
            case {"nonce": str(nonce)} if not self._other_nonce:
                if not _NONCE.fullmatch(nonce):
                    raise ValueError("this is no nonce")
                self._other_nonce = nonce
                return (
                    {"proof": self._proof(True)} if self._dialed else self.challenge()
                )
            case {"proof": str(proof)} if self._other_nonce:
                expected = self._proof(not self._dialed)
                if not hmac.compare_digest(proof.encode(), expected.encode()):
                    raise PermissionError("the other end has another token")
                self.complete = True
                return None if self._dialed else {"proof": self._proof(False)}
        raise ValueError("this is no message of the proof")

    def seal(self, payload: bytes) -> bytes:
        """Returns a message with its code in front.

        Args:
            payload: The message.
        """
        self._sent += 1
        return self._code(self._dialed, self._sent, payload) + b" " + payload

    def unseal(self, line: bytes) -> bytes:
        """Returns the message without its code.

        Args:
            line: The code and the message.

        Raises:
            ValueError: If the code is wrong.
        """
        self._received += 1
        code, payload = line[:_CODE_BYTES], line[_CODE_BYTES + 1 :]
        expected = self._code(not self._dialed, self._received, payload)
        if not hmac.compare_digest(code, expected):
            raise ValueError("the code of the message is wrong")
        return payload

    def _proof(self, of_dialer: bool) -> str:
        return self._hmac(b"proof", of_dialer).decode()

    def _code(self, of_dialer: bool, number: int, payload: bytes) -> bytes:
        return self._hmac(b"message %d %s" % (number, payload), of_dialer)

    def _hmac(self, text: bytes, of_dialer: bool) -> bytes:
        nonces = [self._own_nonce, self._other_nonce]
        of_dialer_first = nonces if self._dialed else nonces[::-1]
        head = f"keras_fastnet {of_dialer:d} {' '.join(of_dialer_first)} "
        return hmac.new(self._key, head.encode() + text, "sha256").hexdigest().encode()
