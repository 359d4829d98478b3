"""Hosts that ssh reaches: network namespaces, each with a real sshd, a name, and a TMPDIR of its own.

Keys, known hosts and settings lie in a folder of the test's: nobody's ~/.ssh is read.  One further namespace is where
the launcher runs.  Needs root, iproute2 and openssh-server.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from hocket.system.namespaces.hosts import ip, on
from hocket.system.namespaces.switch import NET, Switch, switch

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "/usr/sbin/sshd"
SERVER = """
Port 22
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/client.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
AcceptEnv NONE
SetEnv TMPDIR={tmp}
"""
CLIENT = """
Host {names} nobody
    IdentityFile {folder}/client
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    LogLevel ERROR
"""


class Machines:
    """`names` are the hosts', `switch` pulls their cables; `agent` is the command that reaches them."""

    def __init__(self, names: list[str], folder: pathlib.Path, made: Switch) -> None:
        self.names, self.folder, self.switch = names, folder, made
        self.agent = f"ssh -F {folder}/config"
        self.servers: list[subprocess.Popen[bytes]] = []

    def here(self, words: list[str]) -> list[str]:
        """A command, at the launcher's place."""
        names = ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(self.folder / "names")]
        return [*on(self.switch.hosts[-1], str(self.folder / "launcher"), "launcher"), *names, *words]

    def there(self, host: int, words: list[str]) -> list[str]:
        """A command on that host, as if ssh had started it."""
        return ["ip", "netns", "exec", self.switch.hosts[host], *words]

    def env(self, **more: str) -> dict[str, str]:
        """The launcher's."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("HOCKET_", "SSH_"))}
        return own | {"TMPDIR": self.tmp, "PYTHONSAFEPATH": "1"} | more

    @property
    def tmp(self) -> str:
        return str(self.folder / "tmp")

    def run(self, n: int, *words: str, each: int = 2, lost: float | None = None) -> list[str]:
        """`hocket run` on all hosts.  `lost`: other seconds of silence than frames.LOST."""
        limit = f"machines.LOST = {lost}; " if lost else ""
        text = f"import sys; from hocket.tools.remote import machines; {limit}from hocket.tools.run import main; "
        hosts = ",".join(f"{name}:{each}" for name in self.names)
        run = [sys.executable, "-c", f"{text}sys.exit(main(sys.argv[1:]))", "-n", str(n), "--hosts", hosts]
        return self.here([*run, "--agent", self.agent, *words])

    def processes(self) -> dict[int, list[str]]:
        """All of the network's, but for what listens for ssh: pid -> command line."""
        found = {}
        for space in self.switch.hosts:
            for pid in map(int, ip("netns", "pids", space).split()):
                with contextlib.suppress(OSError):
                    words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().strip("\0").split("\0")
                    if words != [""] and pid not in {each.pid for each in self.servers}:
                        found[pid] = words
        return found

    def serve(self, host: int) -> None:
        own = self.folder / self.names[host]
        own.mkdir(exist_ok=True)
        settings = self.folder / f"sshd{host}"
        address = f"{NET}{host + 1}"
        settings.write_text(SERVER.format(address=address, folder=self.folder, tmp=self.tmp))
        privileged = 'mount -t tmpfs none /run && mkdir /run/sshd && mount --bind "$0" /etc/hosts && exec "$@"'
        words = ["sh", "-c", privileged, str(self.folder / "names"), SSHD, "-D", "-e", "-f", str(settings)]
        with open(self.folder / f"log{host}", "wb") as log:
            self.servers.append(
                subprocess.Popen([*on(self.switch.hosts[host], str(own), self.names[host]), *words], stderr=log,
                                 env={"TMPDIR": self.tmp, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})  # fmt: skip
            )

    def wait(self) -> None:
        end = time.monotonic() + 60
        for i, name in enumerate(self.names):
            look = self.here(["bash", "-c", f"exec 3<>/dev/tcp/{NET}{i + 1}/22"])
            while subprocess.run(look, env={"TMPDIR": self.tmp}, stderr=subprocess.DEVNULL).returncode:
                log = (self.folder / f"log{i}").read_text()
                assert time.monotonic() < end and self.servers[i].poll() is None, f"sshd of {name}: {log}"
                time.sleep(0.02)


@contextlib.contextmanager
def machines(*names: str) -> Iterator[Machines]:
    """So many hosts with an sshd each; all is gone when the block ends."""
    assert pathlib.Path(SSHD).exists(), "install openssh-server, as .ci/run does"
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hk-sshd-", dir="/tmp"))
    made = None
    try:
        for each in ("tmp", "launcher"):
            (folder / each).mkdir()
        for key in ("host", "client"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        public = (folder / "host.pub").read_text().split()[:2]
        known = "".join(f"{NET}{i + 1},{name} {' '.join(public)}\n" for i, name in enumerate(names))
        (folder / "known_hosts").write_text(known)
        own = "".join(f"{NET}{i + 1} {name}\n" for i, name in enumerate([*names, "launcher"]))
        (folder / "names").write_text(f"127.0.0.1 localhost\n{own}")
        hosts = "".join(f"Host {name}\n    HostName {NET}{i + 1}\n" for i, name in enumerate(names))
        (folder / "config").write_text(CLIENT.format(names=" ".join(names), folder=folder) + hosts)
        with switch(len(names) + 1, letters="zyxwvutrqponmlkji") as net:  # others' networks may be there, too
            made = Machines([*names], folder, net)
            try:
                for i in range(len(names)):
                    made.serve(i)
                made.wait()
                yield made
            finally:
                for server in made.servers:
                    server.kill()
                    server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """`python -m support.sshd N COMMAND...` runs a command where ssh reaches N hosts, called a, b, ..., by $AGENT."""
    with machines(*"abcdefg"[: int(sys.argv[1])]) as made:
        return subprocess.run(made.here(sys.argv[2:]), env=made.env(AGENT=made.agent), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
