"""Which hosts, and how many ranks on each."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from hocket.errors import ArgumentError
from hocket.tools.remote import agent
from hocket.tools.remote.hostlist import from_file, from_option, spread
from support.launcher import RUN


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:8,b:8", [("a", 8), ("b", 8)]), ("a,b", [("a", 1), ("b", 1)]), ("a,b,a:3", [("a", 4), ("b", 1)]),
        ("me@a.example.org:2", [("me@a.example.org", 2)]), ("2,", [("2", 1)]),
        ("[fd00::1]:2,[fe80::1%eth0]", [("fd00::1", 2), ("fe80::1%eth0", 1)]),
        ("n[08-10,12]:4", [("n08", 4), ("n09", 4), ("n10", 4), ("n12", 4)]), ("me@r[1-2]n[1-2]:1", [
            ("me@r1n1", 1), ("me@r1n2", 1), ("me@r2n1", 1), ("me@r2n2", 1)]), ("10.0.0.1:2", [("10.0.0.1", 2)]),
    ],
)  # fmt: skip
def test_an_option(text: str, found: list[tuple[str, int]]) -> None:
    assert [(each.name, each.slots) for each in from_option(text)] == found


def test_a_file_in_both_syntaxes(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all\n\na slots=4 max_slots=8\nb:2   # MPICH's\n  c\nn[1-2] slots=3\nm[1-2]:2\na slots=1\n")
    found = [(each.name, each.slots) for each in from_file(str(file))]
    assert found == [("a", 5), ("b", 2), ("c", 1), ("n1", 3), ("n2", 3), ("m1", 2), ("m2", 2)]
    ranks = [(each.name, *of) for each, of in spread(from_file(str(file)), 8)]
    assert ranks == [("a", 0, 1, 2, 3, 4), ("b", 5, 6), ("c", 7)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("b slots=two", "'slots=two' is not understood"), ("b 8", "'8' is not understood"),
        ("b slot=8", "'slot' is not known"), ("n[1-", "is a name, or a bracket, missing"), ("b,,c", "is a name, or a"),
        ("b:8 slots=8", "'b:8' is not a host"), ("-oProxyCommand=x", "'-oProxyCommand=x' is not a host"),
        ("b:0", "no slots"),
        ("b slots=0", "no slots"), ("b:-1", "is not a host"), ("b;c", "is not a host"),
        ("n[3-1]", "not a range"), ("n[1-99999]", "not a range"), ("a/b", "is not a host"), ("$x", "is not a host"),
    ],
)  # fmt: skip
def test_a_line_that_nobody_understands_is_named(line: str, why: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"a:8\n{line}\n")
    with pytest.raises(ArgumentError, match=why) as raised:
        from_file(str(file))
    assert str(raised.value).startswith(f"{file}:2: {line!r}")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--hosts", "2", "--hostfile", "f"], "--hosts and --hostfile both say where ranks are"),
        (["--hosts", "a,b", "--link", "20Mbit"], "give --hosts 2, without names"),
        (["--hosts", "a:8", "--elastic"], "--hosts is for jobs of one generation"),
        (["--hosts", "a,b"], "3 ranks are more than the 2 slots of a:1, b:1: give -n 2, or more slots"),
        (["--hosts=-x"], "'-x' is not a host"),
        (["--hostfile", "/no/file"], "--hostfile /no/file: No such file or directory"),
        (["--hostfile", "/dev/null"], "it names no host"),
        (["--hosts", "a:3", "-x", "NO_SUCH_VARIABLE"], "there is no variable 'NO_SUCH_VARIABLE' here"),
        (["-x", "PATH"], "-x and --wdir are for ranks on other hosts"),
        (["--hosts", "a:3", "--agent", ""], "--agent is the command that reaches a host"),
    ],
)
def test_options_that_make_no_sense(options: list[str], why: str) -> None:
    done = subprocess.run([*RUN, "-n", "3", *options, "x.py"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and why in done.stderr, done.stderr


def test_a_host_is_where_ssh_came_to_and_where_its_name_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 5000 10.0.0.2 22")
    for named, found in (("127.0.1.1", ["10.0.0.2"]), ("10.0.0.3", ["10.0.0.2", "10.0.0.3"]), (None, ["10.0.0.2"])):
        monkeypatch.setattr(agent, "local_end", lambda host, named=named: named)
        assert agent._addresses() == found
