"""Hosts that refuse: the error names the host, and its line, and says what to do; nothing waits for an answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hocket.system.namespaces.hosts import refusal
from hocket.tools.remote.hosts import Host
from hocket.tools.remote.refusals import Complaints, ended
from support.sshd import Machines

WHY_NOT = refusal()
real = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
OTHER = """#!/bin/sh
exec {python} -c '
import hocket, runpy
hocket.__version__ = "0.0.9"
runpy.run_module("hocket.tools.remote.agent", run_name="__main__")'
"""
AGENT = "ssh -F {folder}/config"
CASES = {
    "unknown key": (f"{AGENT} -o UserKnownHostsFile=/dev/null", [], ["key is not known here", "`ssh b true`"]),
    "password": ("ssh -F {folder}/nokey", [], ["Permission denied", "wants a password, or a key", "ssh-copy-id"]),
    "no hocket": (AGENT, ["--python", "/usr/bin/python3"], ["/usr/bin/python3 there has no hocket", "--python"]),
    "another hocket": (AGENT, ["--python", "{folder}/other"], ["hocket 0.0.9 is there, and ", "install the same one"]),
    "no folder": (AGENT, ["--wdir", "/no/where"], ["'/no/where' cannot be entered (No such file", "--wdir"]),
    "no python": (AGENT, ["--python", "/no/python"], ["/no/python is not there", "--python"]),
    "nobody there": (f"{AGENT} -o HostName=10.79.0.9", [], ["is the host up"]),
    "no agent": ("echo hello", [], ["hello b", "--agent says how a host is reached"]),
    "no command": ("/no/ssh", [], ["cannot run '/no/ssh': No such file"]),
}
MORE = ("no python", "nobody there", "no agent", "no command")


@real
@pytest.mark.parametrize("case", [pytest.param(each, marks=[pytest.mark.more] * (each in MORE)) for each in CASES])
def test_what_a_host_refuses(net: Machines, case: str) -> None:
    agent, options, wanted = CASES[case]
    other, file = net.folder / "other", net.folder / "hosts"
    other.write_text(OTHER.format(python=sys.executable))
    other.chmod(0o755)
    config = (net.folder / "config").read_text()
    (net.folder / "nokey").write_text(config.replace("/client\n", "/no-such-key\n"))
    file.write_text("# those of today\nb slots=2\n")
    words = [each.format(folder=net.folder) for each in ("--agent", agent, *options)]
    command = [sys.executable, "-m", "hocket", "run", "-n", "1", "--hostfile", str(file), *words, "x.py"]
    done = subprocess.run(net.here(command), env=net.env(), capture_output=True, text=True, timeout=60)
    assert done.returncode == (127 if case == "no command" else 1) and "Traceback" not in done.stderr, done.stderr
    if case != "no command":
        assert done.stderr.startswith(f"hocket run: host b ({file}:2: 'b slots=2'): "), done.stderr
    for each in wanted:
        assert each in done.stderr, done.stderr
    assert net.processes() == {}


@real
def test_what_a_shell_prints_before_the_agent_is_no_matter(net: Machines) -> None:
    noisy = net.folder / "noisy"
    noisy.write_text("#!/bin/sh\necho Welcome\nexec ssh \"$@\"\n")
    noisy.chmod(0o755)
    words = ["--agent", f"{noisy} -F {net.folder}/config", "--hosts", "b", "--", "sh", "-c", "echo there; cd /no; true"]
    done = subprocess.run(net.here([sys.executable, "-m", "hocket", "run", "-n", "1", *words]), env=net.env(),
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0 and done.stdout == "[0] there\n", done


@pytest.mark.parametrize(
    ("code", "said", "wanted"),
    [
        (255, "ssh: connect to host b port 22: Connection timed out", "no sshd answers there"),
        (255, "ssh: Could not resolve hostname b: Name or service not known", "look at the spelling"),
        (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "its key is not known here, or has changed"),
        (255, "root@b: Permission denied (publickey,password).", "wants a password"),
        (126, "bash: /p: Permission denied", "/p is not there"),
        (127, "zsh:1: command not found: /p", "/p is not there"),
        (1, "/p: No module named hocket", "/p there has no hocket"),
        (3, "", "`ssh` ended with 3, and said nothing: does `b` take the command"),
        (-9, "", "`ssh` was killed by signal 9"),
    ],
)
def test_words_of_ssh_and_what_to_do(code: int, said: str, wanted: str) -> None:
    complaints = Complaints()
    complaints.feed(f"{said}\n".encode(), 0.0)
    host = Host("b", range(1), ["/usr/bin/ssh", "b"], python="/p")
    assert wanted in ended(host, code, complaints, None, b"")
