"""The handshake: who holds the key gets in, nothing else does; and the client's errors name both ends."""

import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.control.dial import connect, dial
from hocket.control.handshake import NONCE, START, AuthError, ClientSide, Connection, Hello, ServerSide, prove, where
from hocket.errors import ArgumentError, TransportError
from support.leftovers import descriptors

KEY = b"k" * 32
ME = Hello(3, "data", "job-1", 7, 5)
HERE = where(("10.0.0.1", 29500))


def client_of(key: bytes = KEY, hello: Hello = ME, place=HERE) -> ClientSide:
    return ClientSide(key, hello, place)


def server_of(key: bytes = KEY, target: int = 5, epoch: int = 7, place=HERE) -> ServerSide:
    return ServerSide(key, target, epoch, place)


def talk(client: ClientSide, server: ServerSide, meddle=lambda turn, data: data) -> None:
    """Carry the three frames, each changed by `meddle`."""
    reply = server.feed(meddle(0, client.start))
    proof = client.feed(meddle(1, reply))
    server.feed(meddle(2, proof))


def test_both_prove_and_the_server_learns_who():
    client, server = client_of(), server_of()
    talk(client, server)
    assert client.done and server.done and server.hello == ME
    assert client.missing == server.missing == 0


def test_arrives_byte_by_byte():
    client, server = client_of(), server_of()
    reply = b"".join(server.feed(client.start[i : i + 1]) for i in range(len(client.start)))
    proof = b"".join(client.feed(reply[i : i + 1]) for i in range(len(reply)))
    for i in range(len(proof)):
        assert not server.done
        server.feed(proof[i : i + 1])
    assert server.done


def test_client_refuses_a_server_with_another_key():
    """One that answers as if the hello had been right, and one that says that it was not."""
    client = client_of()
    nonce = bytes(NONCE)
    with pytest.raises(AuthError, match="HOCKET_SECRET"):
        client.feed(nonce + prove(b"x" * 32, b"server", client.start + nonce))
    with pytest.raises(AuthError, match="does not hold this job's key") as caught:
        server_of(b"x" * 32).feed(client.start)
    with pytest.raises(AuthError, match="HOCKET_SECRET differs"):
        client_of().feed(caught.value.reply)


def test_a_stranger_learns_nothing_to_guess_the_key_by():
    """Two servers with other keys answer the same to a hello that was not made with theirs."""
    replies = set()
    for key in (KEY, b"x" * 32):
        with pytest.raises(AuthError) as caught:
            server_of(key).feed(client_of(b"guess").start)
        replies.add(caught.value.reply)
    assert len(replies) == 1


@pytest.mark.parametrize(
    ("server", "text"),
    [
        (server_of(place=where(("10.0.0.1", 29501))), "relays connections to it"),
        (server_of(place=where(("10.0.0.2", 29500))), "address translation"),
        (server_of(target=6), "another rank"),
        (server_of(epoch=8), "another session"),
    ],
)
def test_a_server_that_was_not_meant_refuses_and_says_so(server, text):
    """A relay carries the handshake to a server that the client did not dial."""
    client = client_of()
    with pytest.raises(AuthError, match="rank 3 was refused") as caught:
        server.feed(client.start)
    assert not server.done and len(caught.value.reply) == client.missing
    with pytest.raises(AuthError, match=text):
        client.feed(caught.value.reply)


def test_each_connection_has_a_key_of_its_own():
    keys = set()
    for _ in range(3):
        client, server = client_of(), server_of()
        talk(client, server)
        assert client.session == server.session and len(client.session) == 32
        keys.add(client.session)
    assert len(keys) == 3 and KEY not in keys
    assert server_of(b"").session == b""


def test_both_ends_see_one_address():
    assert where(("10.0.0.1", 80)) == where(("::ffff:10.0.0.1", 80, 0, 0)) != where(("10.0.0.1", 81))
    assert where(("fe80::1%eth0", 80, 0, 2)) == where(("fe80::1", 80, 0, 3))
    assert where("/a/path") == where("")


def test_server_refuses_a_client_with_another_key():
    client, server = client_of(), server_of()
    server.feed(client.start)
    with pytest.raises(AuthError):
        server.feed(bytes(32))
    assert not server.done and server.hello is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, START * 8 - 1))
def test_every_changed_bit_of_the_hello_is_noticed(bit):
    def flip(turn, data):
        if turn:
            return data
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    with pytest.raises(AuthError):
        talk(client_of(), server_of(), flip)


def test_a_replayed_conversation_is_refused():
    client, server, sent = client_of(), server_of(), []
    talk(client, server, lambda turn, data: sent.append(data) or data)
    again = server_of()
    again.feed(sent[0])
    with pytest.raises(AuthError):
        again.feed(sent[2])


def test_the_servers_own_proof_cannot_be_reflected():
    server = server_of()
    reply = server.feed(client_of().start)
    with pytest.raises(AuthError):
        server.feed(reply[32:])


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=400))
def test_junk_never_gets_in(junk):
    server = server_of()
    with pytest.raises(AuthError):
        server.feed(junk[: server.missing].ljust(START, b"!"))
        server.feed(bytes(32))
    assert not server.done


def test_long_job_names_are_hashed_and_long_purposes_refused():
    assert len(Hello(0, "data", "j" * 300).job) == 64
    with pytest.raises(ArgumentError):
        Hello(0, "p" * 17, "j")


# --- connect ---


def serve(sock: socket.socket, key: bytes, seen: list, conversations: int = 1) -> threading.Thread:
    def run():
        for _ in range(conversations):
            conn, _ = sock.accept()
            server = server_of(key, place=where(conn.getsockname()))
            while not server.done:
                data = conn.recv(server.missing)
                if not data:
                    break
                try:
                    reply = server.feed(data)
                except AuthError as why:
                    conn.sendall(why.reply)
                    break
                if reply:
                    conn.sendall(reply)
            seen.append((conn, server.hello, server.session))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connect_over_tcp(host):
    seen = []
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        sock.listen()
        thread = serve(sock, KEY, seen)
        got = connect(("tcp", host, sock.getsockname()[1]), KEY, ME, 5)
        thread.join(5)
        assert seen[0][1] == ME
        assert isinstance(got, Connection) and got.dialled and got.hello == ME
        assert got.key == seen[0][2] != b"" and got.key.hex() not in repr(got)
        assert got.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) and got.gettimeout() is None
        got.sendall(b"hi")
        assert seen[0][0].recv(2) == b"hi"
        got.close()
        seen[0][0].close()


def test_connect_waits_for_a_server_that_comes_later(tmp_path):
    path, seen, sock = str(tmp_path / "s"), [], socket.socket(socket.AF_UNIX)

    def later():
        time.sleep(0.3)
        sock.bind(path)
        sock.listen()
        serve(sock, b"", seen)

    threading.Thread(target=later, daemon=True).start()
    got = connect(("unix", path), None, ME, 5)
    got.close()
    sock.close()


def test_who_waits_for_a_stopped_server_looks_meanwhile_whether_to_go_on():
    """Its system takes the connection; nothing more comes."""
    looks = []

    def look():
        looks.append(1)
        if len(looks) > 3:
            raise KeyError("enough")

    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(KeyError, match="enough"):
            connect(("tcp", *silent.getsockname()), KEY, ME, 5, look)
        with pytest.raises(TransportError, match="ETIMEDOUT.*tried for 0.3 s"):
            connect(("tcp", *silent.getsockname()), KEY, ME, 0.3)


def test_a_refused_connection_names_the_address_the_errno_and_a_hint():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(TransportError, match=rf"tcp:127.0.0.1:{port}.*ECONNREFUSED.*nothing listens") as caught:
        connect(("tcp", "127.0.0.1", port), KEY, ME, 0.3)
    waited = time.monotonic() - start
    assert waited > 0.2 and "0.3 s" in str(caught.value)


def test_an_unknown_host_is_named():
    with pytest.raises(TransportError, match="no-such-host.invalid.*not known"):
        dial(("tcp", "no-such-host.invalid", 1), KEY, ME, 1)


def test_wrong_key_is_told_at_once():
    """By the first conversation; nobody answers a second one."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        serve(sock, b"other key of the job", [], conversations=1)
        with pytest.raises(AuthError, match="HOCKET_SECRET differs"):
            connect(("tcp", "127.0.0.1", sock.getsockname()[1]), KEY, ME, 10)


def test_a_server_that_says_nothing_costs_only_the_timeout_and_no_descriptor():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        before = descriptors()
        looks = []  # each LOOK, a tenth of a second
        with pytest.raises(TransportError, match=r"tcp:127.0.0.1:\d+ -> tcp:127.0.0.1:\d+: the handshake.*ETIMEDOUT"):
            connect(("tcp", "127.0.0.1", sock.getsockname()[1]), KEY, ME, 0.4, lambda: looks.append(1))
        assert len(looks) < 15
        assert descriptors() <= before
