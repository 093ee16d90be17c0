"""Strangers send what hypothesis finds while workers wait for the last of them."""

import contextlib
import json
import resource
import socket
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_fastnet.cluster import ports
from keras_fastnet.cluster.rendezvous.token_proof import REFUSALS
from tests.cluster.rendezvous_worker import (
    Worker,
    connect,
    hello,
    other_process,
    outcomes,
    say,
)

pytest_plugins = ["tests.cluster.rendezvous_fixtures"]
pytestmark = pytest.mark.usefixtures("nothing_left")

TOKEN = "a secret of 22 letters"
EXAMPLES = settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck)
)
# A line that no worker sends: the connection is closed when it has been read.
END = b"\n\xff\n"

KEYS = [
    *("hello", "facts", "node", "patience", "workers", "call", "id", "echo", "error"),
    *("heard", "welcome", "agreed", "nodes", "nonce", "rank", "proof", "refused"),
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-1, 4)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([*REFUSALS, "0" * 32, "0" * 64]),
    lambda values: (
        st.lists(values, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), values)
    ),
    max_leaves=10,
)


def real_messages(addresses):
    """Returns messages as workers send them, but for the numbers of calls."""
    number = "0" * 32
    wrong = hello(addresses, 2)
    wrong["facts"] = {"workers": wrong["facts"]["workers"], "tensorflow": "1"}
    alone = hello(addresses, 1)
    alone["facts"] = {"workers": ["a:1", "b:2"]}
    return [
        *(hello(addresses, rank) for rank in range(4)),
        {**hello(addresses, 2), "patience": 0},
        wrong,
        alone,
        *({"call": rank, "id": number} for rank in range(3)),
        {"call": 1, "id": "x" * 1_000_000},
        *({"echo": {"call": rank, "id": number}} for rank in range(3)),
        {"error": "x"},
        {"heard": 1},
        {"welcome": 1},
        {"agreed": 8, "nodes": ["a", "b", "c"]},
        {"nonce": number, "rank": 2},
        {"proof": number * 2},
        *({"refused": refusal, "rank": 1} for refusal in REFUSALS),
    ]


@st.composite
def lines(draw, messages):
    """Draws a line: bytes, any object, or a changed message of a worker."""
    kind = draw(st.sampled_from(["bytes", "object", "message", "value", "cut"]))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    if kind == "object":
        return json.dumps(draw(st.dictionaries(st.sampled_from(KEYS), VALUES))).encode()
    message = dict(draw(st.sampled_from(messages)))
    if kind == "value":
        message[draw(st.sampled_from([*message]))] = draw(VALUES)
    line = json.dumps(message).encode()
    if kind == "cut":
        start = draw(st.integers(0, len(line)))
        line = line[:start] + draw(st.binary(max_size=3)) + line[start + 1 :]
    return line


def attack(address, data, ending):
    """Sends data, ends in one of several ways, and waits until it has been read."""
    with connect(address) as stranger, contextlib.suppress(ConnectionError):
        for piece in data:
            stranger.sendall(piece)
        if ending == "reset":
            linger = b"\1\0\0\0\0\0\0\0"
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            return
        if ending == "half-close":
            with contextlib.suppress(OSError):  # The worker may have closed it.
                stranger.shutdown(socket.SHUT_WR)
        else:
            stranger.sendall(END)
        while stranger.recv(65536):
            pass


@contextlib.contextmanager
def meeting(addresses, token, third=Worker):
    """Two of three workers, which must meet the third after the context."""
    workers = [Worker(addresses, rank, token=token) for rank in (0, 1)]
    yield workers
    workers.append(third(addresses, 2, token=token))
    assert outcomes(*workers) == [7] * 3
    assert workers[-1].seconds < 8


@pytest.mark.parametrize("token", [None, TOKEN], ids=["open", "token"])
@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_no_message_of_a_stranger_ends_a_start(addresses, victim, token):
    addresses = addresses[:3]
    drawn = st.lists(lines(real_messages(addresses)), max_size=5)
    with meeting(addresses, token) as workers:

        @EXAMPLES
        @given(drawn, st.sampled_from(["wrong line", "half-close", "reset"]), st.data())
        def examples(sent, ending, data):
            text = b"".join(line + b"\n" for line in sent)
            cut = data.draw(st.integers(0, len(text)))
            attack(addresses[victim], [text[:cut], text[cut:]], ending)
            assert all(worker.is_alive() for worker in workers)

        examples()


def test_no_process_at_a_workers_address_ends_a_start(addresses):
    """It answers the calls of rank 0 to rank 2, after a copied hello.

    With a token it would not be called.
    """
    addresses = addresses[:3]
    messages = real_messages(addresses)
    port = int(addresses[2].split(":")[1])
    with meeting(addresses, None) as workers, ports.listening_socket(port) as listener:
        listener.settimeout(10)

        @settings(EXAMPLES, max_examples=30)
        @given(st.lists(lines(messages), max_size=5))
        def examples(sent):
            with connect(addresses[0]) as stranger:
                say(stranger, hello(addresses, 2))
                with (
                    listener.accept()[0] as call,
                    contextlib.suppress(ConnectionError),
                ):
                    call.sendall(b"".join(line + b"\n" for line in sent) + END)
                    while call.recv(65536):
                        pass
            assert all(worker.is_alive() for worker in workers)

        examples()


@pytest.mark.parametrize("token", [None, TOKEN], ids=["open", "token"])
def test_no_process_at_the_address_of_rank_0_confuses_a_follower(addresses, token):
    """Without a token, it must not say what only rank 0 may say."""
    drawn = lines(real_messages(addresses[:2]))
    if token is None:
        drawn = drawn.filter(lambda line: b"error" not in line and b"we" not in line)
    follower = Worker(addresses[:2], 1, token=token)
    with ports.listening_socket(int(addresses[0].split(":")[1])) as listener:

        @settings(EXAMPLES, max_examples=30)
        @given(st.lists(drawn, max_size=5))
        def examples(sent):
            with listener.accept()[0] as call, contextlib.suppress(ConnectionError):
                call.sendall(b"".join(line + b"\n" for line in sent) + END)
                while call.recv(65536):
                    pass
            assert follower.is_alive()

        examples()
    leader = Worker(addresses[:2], 0, token=token)
    assert outcomes(leader, follower) == [7] * 2


FLOOD = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
host, port = sys.argv[1].split(":")
line = sys.stdin.readline().encode()
held = []
while True:
    try:
        held.append(socket.create_connection((host, int(port)), timeout=1))
        held[-1].sendall(line)
        if len(held) == 600:
            print("600 held", flush=True)
        if len(held) > 700:
            held.pop(0).close()
    except OSError:
        held = held[300:]
"""


@pytest.mark.parametrize("says", ["nothing", "a copied hello"])
@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_more_connections_than_files_do_not_end_a_start(addresses, victim, says):
    addresses = addresses[:3]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    line = json.dumps(hello(addresses, 2)) if says == "a copied hello" else ""
    command = [sys.executable, "-S", "-c", FLOOD, addresses[victim]]
    with (
        other_process() as third,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as strangers,
    ):
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        try:
            with meeting(addresses, None, third):
                strangers.stdin.write(f"{line}\n")
                strangers.stdin.flush()
                assert strangers.stdout.readline() == "600 held\n"
        finally:
            strangers.kill()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_slow_senders_do_not_hold_up_a_start(addresses):
    addresses = addresses[:3]
    ended = threading.Event()

    def send_slowly():
        line = json.dumps(hello(addresses, 2)).encode()
        with connect(addresses[0]) as stranger, contextlib.suppress(OSError):
            for byte in line:
                stranger.sendall(bytes([byte]))
                if ended.wait(0.02):
                    return

    threads = [threading.Thread(target=send_slowly) for _ in range(20)]
    try:
        with meeting(addresses, None):
            for thread in threads:
                thread.start()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
