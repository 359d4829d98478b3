"""HOCKET_TLS_CERT: ranks whose certificates are of one CA meet, others are refused, and both sides say why."""

from __future__ import annotations

import hmac
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from hocket.collectives.base.config import Config
from hocket.control import encryption
from hocket.control.handshake import AuthError
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError
from hocket.system import tls
from support import jobs, worlds

KEY = bytes(tls.KEY)
CA = """
[ca]
default_ca = ours
[ours]
database = index
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = policy
[policy]
commonName = supplied
"""
"""The configuration of `openssl ca`."""
CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def issue(folder: Path, name: str, ca: str, end: str = "", usage: str = "serverAuth,clientAuth") -> None:
    """name.pem and name.key, of a CA, until `end` (of OpenSSL's kind: 20200102000000Z) or for 30 days."""
    (folder / "usage").write_text(f"extendedKeyUsage={usage}\n")
    (folder / "index").write_text("")
    openssl(folder, "req", *CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    # `openssl x509` makes no certificate that ended in the past: newer ones refuse -days -1.
    until = ["-startdate", "20200101000000Z", "-enddate", end] if end else ["-days", "30"]
    openssl(folder, "ca", "-batch", "-notext", "-config", "ca.cnf", "-in", f"{name}.csr", "-cert", f"{ca}.pem",
            "-keyfile", f"{ca}.key", *until, "-extfile", "usage", "-out", f"{name}.pem")  # fmt: skip


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    (folder / "ca.cnf").write_text(CA)
    for ca in ("ca", "other"):
        openssl(folder, "req", "-x509", *CURVE, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
    issue(folder, "first", "ca")
    issue(folder, "second", "ca")
    issue(folder, "strange", "other")
    issue(folder, "expired", "ca", end="20200102000000Z")
    issue(folder, "mail", "ca", usage="emailProtection")
    openssl(folder, "ec", "-in", "first.key", "-aes128", "-passout", "pass:words", "-out", "locked.key")
    return folder


def files(pki: Path, name: str, ca: str = "ca") -> tuple[str, str, str]:
    return str(pki / f"{name}.pem"), str(pki / f"{name}.key"), str(pki / f"{ca}.pem")


def environment(pki: Path, name: str) -> dict[str, str]:
    return dict(zip(encryption.FILES, files(pki, name), strict=True))


JOB = """
import os, numpy as np, hocket
from hocket.collectives.base.config import Config
from hocket.control import rendezvous
rendezvous.Meet.patience = 1.0          # with servers that are not of this job
name = {names}[int(os.environ["HOCKET_RANK"])]
if name:
    for what, end in (("CERT", name + ".pem"), ("KEY", name + ".key"), ("CA", "ca.pem")):
        os.environ["HOCKET_TLS_" + what] = os.path.join({pki!r}, end)
else:
    os.environ["HOCKET_ENCRYPT"] = "1"
try:
    with hocket.init(transport="tcp", timeout=60) as comm:
        assert (comm.allreduce(np.ones(100000)) == 2).all()
        print(comm.explain())
except hocket.Error as error:
    print(type(error).__name__, error)
os._exit(0)
"""


def job(pki: Path, *names: str, over: str = "tcp") -> jobs.Job:
    """Ranks with these certificates, which meet over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = {"HOCKET_RENDEZVOUS": f"tcp:127.0.0.1:{server.getsockname()[1]}"} if over == "tcp" else {}
    source = JOB.format(names=names, pki=str(pki))
    return jobs.Job(len(names), source, env={"PYTHONPATH": worlds.PATH, **where})


def ranks(pki: Path, *names: str, over: str = "tcp") -> list[str]:
    """Their words."""
    with job(pki, *names, over=over) as running:
        return [end.out for end in running.wait(90)]


def refused(pki: Path, *names: str) -> str:
    """The words of rank 1, which does not join; rank 0 waits on."""
    with job(pki, *names) as running:
        out, _ = running.processes[1].communicate(timeout=90)
        assert running.processes[0].poll() is None
    return out


def test_ranks_with_certificates_of_one_ca(pki: Path) -> None:
    for out in ranks(pki, "first", "second"):
        assert f"; certificates of {pki}/ca.pem)" in out and "tcp (encrypted: TLS 1.3" in out


def test_a_rank_without_a_certificate_is_refused(pki: Path) -> None:
    """Where they meet over TCP by TLS itself; where inside a host, when they compare what they are to do."""
    second = refused(pki, "first", "")
    assert second.startswith("AuthError") and "HOCKET_TLS_CERT set on all or on none" in second
    for out in ranks(pki, "first", "", over="unix"):
        assert out.startswith("ArgumentError ranks [0] have certificates and ranks [1] do not: HOCKET_TLS_CERT must be")


def test_a_rank_with_a_strange_certificate_does_not_join(pki: Path) -> None:
    second = refused(pki, "first", "strange")
    assert second.startswith("AuthError") and "unknown ca" in second


# --- the two ends

@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a handshake may."""
    monkeypatch.setattr(encryption, "ATTEMPT", 60.0)


def ends(client: tls.Certificates | None, server: tls.Certificates | None, keys: tuple[bytes, bytes] = (KEY, KEY),
         between: socket.socket | None = None) -> tuple[object, object]:  # fmt: skip
    """The fate of the dialling end, and of the other."""
    a, b = socket.socketpair()
    reactor, heard, changed, begun = Reactor(), [], threading.Event(), threading.Event()

    def hear(what: object) -> None:
        heard.append(what)
        changed.set()

    def accept() -> None:
        encryption.certificates = server
        made.append(encryption.Securing(reactor, b, keys[1], hear, hear))
        encryption.certificates = client
        begun.set()

    made: list[object] = []
    try:
        reactor.soon(accept)
        assert begun.wait(60)
        try:
            first: object = encryption.secure(a, keys[0], 60)
        except AuthError as error:
            first = str(error)
            a.close()
        assert changed.wait(60)
    finally:
        encryption.certificates = None
        reactor.close()
        a.close()
        b.close()
    return first, heard[0]


@pytest.mark.parametrize(
    ("name", "why"),
    [("strange", "unable to get local issuer certificate"), ("expired", "certificate has expired"),
     ("mail", "unsuitable certificate purpose")],
)  # fmt: skip
def test_a_certificate_that_is_not_taken(name: str, why: str, pki: Path) -> None:
    """On either side, and both say so."""
    good, bad = tls.Certificates(*files(pki, "first")), tls.Certificates(*files(pki, name))
    for first, second in (ends(good, bad), reversed(ends(bad, good))):
        assert isinstance(first, str) and f"the other side's certificate was refused ({why})" in first
        assert "HOCKET_ENCRYPT" not in first
        assert isinstance(second, str) and "refused by the other side (TLS: " in second and "alert" in second


def test_a_certificate_and_a_key_alone(pki: Path) -> None:
    good = tls.Certificates(*files(pki, "first"))
    for pair in (ends(good, None), ends(None, good)):
        for said in pair:
            assert isinstance(said, str) and "HOCKET_TLS_CERT set on all or on none" in said


def test_the_jobs_key_is_proven_inside(pki: Path) -> None:
    """A certificate alone opens nothing: who sits in between with one has no proof that fits."""
    good, other = (tls.Certificates(*files(pki, name)) for name in ("first", "second"))
    first, second = ends(good, other)
    assert isinstance(first, tls.Tls) and isinstance(second, tls.Tls)
    assert first.binding() == second.binding()
    for said in ends(good, other, (KEY, b"2" * tls.KEY)):
        assert isinstance(said, str)
    assert "has not proven that it holds this job's key" in str(ends(good, other, (KEY, b"2" * tls.KEY))[1])


def test_who_sits_in_between_with_a_certificate_is_noticed(pki: Path) -> None:
    """He has both ends' connections, and carries each one's proof to the other."""
    good, his = (tls.Certificates(*files(pki, name)) for name in ("first", "second"))
    (a, to_a), (to_b, b) = socket.socketpair(), socket.socketpair()
    pairs = [(tls.Tls(a, KEY, False, good), tls.Tls(to_a, KEY, True, his)),
             (tls.Tls(to_b, KEY, False, his), tls.Tls(b, KEY, True, good))]  # fmt: skip
    with a, to_a, to_b, b:
        for pair in pairs:
            while [end.shake() for end in pair] != [None, None]:
                continue
        (client, _), (_, server) = pairs
        steps = encryption._steps(server, KEY, server=True)
        assert next(steps) == "read"
        pairs[1][0].write(hmac.digest(KEY, b"client" + client.binding(), "sha256"))  # what the client says to him
        with pytest.raises(OSError, match="somebody is in between"):
            next(steps)


# --- what is set

def test_files_that_cannot_be_used(pki: Path) -> None:
    good = files(pki, "first")
    (pki / "empty").write_text("")
    for which, path, why in ((0, "empty", "HOCKET_TLS_CERT is '.*/empty', which cannot be used \\(no start line\\)"),
                             (1, "second.key", "HOCKET_TLS_KEY is .*key values mismatch.* without a passphrase"),
                             (1, "locked.key", "HOCKET_TLS_KEY is .*, without a passphrase"),
                             (2, "empty", "HOCKET_TLS_CA is .*the CA that all ranks' come from")):  # fmt: skip
        paths = [*good]
        paths[which] = str(pki / path)
        with pytest.raises(ArgumentError, match=why):
            encryption.use(paths)
    assert encryption.certificates is None


def test_settings_that_do_not_go_together(pki: Path) -> None:
    given = environment(pki, "first")
    assert Config.from_env(dict(given)).encrypt
    with pytest.raises(ArgumentError, match="HOCKET_TLS_CERT is set and HOCKET_ENCRYPT is 0"):
        Config.from_env({**given, "HOCKET_ENCRYPT": "0"})
    with pytest.raises(ArgumentError, match="go together; not set: HOCKET_TLS_KEY, HOCKET_TLS_CA"):
        Config.from_env({"HOCKET_TLS_CERT": given["HOCKET_TLS_CERT"]})
    with pytest.raises(ArgumentError, match="HOCKET_TLS_CA is '/nowhere', which cannot be opened .No such file"):
        Config.from_env({**given, "HOCKET_TLS_CA": "/nowhere"})
    assert os.environ.get("HOCKET_TLS_CERT") is None
