"""Workers that must prove to have `FASTNET_TOKEN`."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet.cluster.rendezvous.token_proof import TokenProof
from tests.cluster.rendezvous_worker import (
    Worker,
    connect,
    hello,
    outcomes,
    say,
)

pytest_plugins = ["tests.cluster.rendezvous_fixtures"]
pytestmark = pytest.mark.usefixtures("nothing_left")

TOKEN, OTHER = "a secret of 22 letters", "another of 20 letters"


def test_workers_with_the_same_token_meet(addresses):
    workers = [Worker(addresses, rank, token=TOKEN) for rank in range(4)]
    assert outcomes(*workers) == [7] * 4


@pytest.mark.parametrize(
    ("of_leader", "of_follower", "received"),
    [
        (TOKEN, None, "rank 0 has one and rank 1 has none"),
        (None, TOKEN, "rank 1 has one and rank 0 has none"),
        (TOKEN, OTHER, "rank 0 and rank 1 have different ones"),
    ],
)
def test_different_tokens_are_reported_but_not_shown(
    addresses, soon, caplog, of_leader, of_follower, received
):
    workers = [
        Worker(addresses[:2], 0, timeout=1.5, token=of_leader),
        Worker(addresses[:2], 1, token=of_follower),
    ]
    with caplog.at_level(logging.DEBUG):
        texts = [*outcomes(*workers), *caplog.messages]
    for text in texts:
        assert f"FASTNET_TOKEN, or none must have one. Received: {received}" in text
        assert TOKEN not in text and OTHER not in text
    assert len(texts) == 3
    assert max(worker.seconds for worker in workers) < 5


def test_short_token_raises_without_being_shown(addresses):
    text = Worker(addresses[:1], 0, token="hunter2").outcome()
    assert "at least 16 characters. Received: 7." in text
    assert "hunter2" not in text


def test_strangers_without_the_token_learn_and_change_nothing(addresses):
    """They say what ends a start if a worker says it."""
    workers = [Worker(addresses[:3], rank, token=TOKEN) for rank in (0, 1)]
    wrong = {**hello(addresses[:3], 1), "facts": {"workers": ["a", "b"]}}
    for message in [wrong, hello(addresses[:3], 1), {"call": 0, "id": "twin"}]:
        with connect(addresses[0]) as stranger, stranger.makefile() as lines:
            say(stranger, message)
            stranger.shutdown(1)
            heard = [json.loads(line) for line in lines]
        refused = [{"refused": "the worker has no token"}] if "hello" in message else []
        assert heard == refused
    workers.append(Worker(addresses[:3], 2, token=TOKEN))
    assert outcomes(*workers) == [7] * 3


def test_mistake_of_a_worker_with_the_token_ends_the_start_at_once(addresses, soon):
    """Rank 2 has other addresses, so its own is never called."""
    wrong = [*addresses[:2], addresses[3]]
    workers = [Worker(addresses[:3], rank, token=TOKEN) for rank in (0, 1)]
    workers.append(Worker(wrong, 2, token=TOKEN))
    for text in outcomes(*workers):
        assert "for the workers' addresses" in text
    assert max(worker.seconds for worker in workers) < 5


def both(token=TOKEN, other=TOKEN):
    return TokenProof(token, 1, dialed=True), TokenProof(other, 0, dialed=False)


def prove(dialer, acceptor):
    challenge = acceptor.answer(dialer.challenge())
    dialer.answer(acceptor.answer(dialer.answer(challenge)))


@given(st.lists(st.tuples(st.booleans(), st.binary())))
def test_messages_are_unsealed_in_their_order(messages):
    ends = both()
    prove(*ends)
    assert all(end.complete for end in ends)
    for of_dialer, payload in messages:
        sender, receiver = ends if of_dialer else ends[::-1]
        assert receiver.unseal(sender.seal(payload)) == payload


@given(st.binary(), st.data())
def test_changed_and_reflected_messages_raise(payload, data):
    dialer, acceptor = both()
    prove(dialer, acceptor)
    sealed = dialer.seal(payload)
    place = data.draw(st.integers(0, len(sealed) - 1).filter(lambda i: i != 64))
    changed = bytearray(sealed)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="code"):
        acceptor.unseal(bytes(changed))
    with pytest.raises(ValueError, match="code"):
        dialer.unseal(sealed)


def test_repeated_message_raises():
    dialer, acceptor = both()
    prove(dialer, acceptor)
    sealed = dialer.seal(b"x")
    acceptor.unseal(sealed)
    with pytest.raises(ValueError, match="code"):
        acceptor.unseal(sealed)


def test_process_that_returns_what_it_is_sent_proves_nothing():
    dialer, _ = both()
    own = dialer.answer(dialer.challenge())
    with pytest.raises(PermissionError):
        dialer.answer(own)


def test_acceptor_sends_no_code_to_a_process_without_the_token():
    dialer, acceptor = both(OTHER)
    answer = acceptor.answer(dialer.challenge())
    assert set(answer) == {"nonce", "rank"}
    with pytest.raises(PermissionError):
        acceptor.answer(dialer.answer(answer))
    assert not acceptor.complete
