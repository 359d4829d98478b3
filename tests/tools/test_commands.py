"""Command lines of README and docs: the real parsers take them, and what takes a second or two runs."""

from __future__ import annotations

import argparse
import io
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hocket.tools import cli
from hocket.tools.shell import page

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
FIRST = re.compile(r"^```python\n# \w+\.py +(\S.*)$", re.M)
"""A program's first line: how to run it."""
INLINE = re.compile(r"`((?:hocket|make|python(?:3|\.\w+)? -m hocket)(?: [^`\n]*)?)`")


class Taken(BaseException):
    """The parser took the words."""


class Refused(BaseException):
    """The parser said this of the words."""


def lines(path: Path) -> list[str]:
    text = path.read_text()
    blocks = [block for language, block in FENCE.findall(text) if language in ("", "sh", "bash", "shell")]
    fenced = [line for block in blocks for line in re.sub(r"\\\n", " ", block).splitlines()]
    found = [part for line in fenced for part in re.split(r" +# | && ", line.strip())[: 1 + line.count(" && ")]]
    return found + FIRST.findall(text)


def command(line: str) -> list[str]:
    """Its words, behind variables, `sudo` and a folder of programs; none: it is no command of ours."""
    try:
        words = shlex.split(re.sub(r"\bPATH$", "x.json", re.sub(r"\$\([^)]*\)", "x", line)), comments=True)
    except ValueError:
        return []
    while words and (words[0] in ("sudo", "export") or re.match(r"[A-Z_]+=", words[0])):
        del words[0]
    if words:
        words[0] = words[0].removeprefix(".venv/bin/")
    return words if words and re.fullmatch(r"hocket|python3?|make|torchrun|pip", words[0]) else []


def parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise what the command's parser says: SystemExit or Refused where it refuses the words."""
    name, rest = words[0], words[1:]
    if name == "make":
        targets = {word for line in re.findall(r"^([\w. -]+):", MAKEFILE, re.M) for word in line.split()}
        variables = set(re.findall(r"\$\(?(\w+)|^(\w+) *\??:?=", MAKEFILE, re.M))
        known = {name for pair in variables for name in pair}
        for word in rest:
            assert word.partition("=")[0] in (known if "=" in word else targets), word
    elif name == "pip":
        extras = ",".join(re.findall(r"hocket\[([\w,-]+)\]", " ".join(rest)))
        assert not extras or {*extras.split(",")} <= {*re.findall(r"^([\w-]+) = \[", PROJECT, re.M)}, extras
    elif name == "torchrun":
        program(rest[next(i for i, word in enumerate(rest) if word.endswith(".py") or word == "hocket") :], monkeypatch)
    elif name.startswith("python"):
        program(["python", *rest], monkeypatch)
    else:
        through(lambda: cli.main(rest), rest, monkeypatch)


def program(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A program, as `hocket run` starts it."""
    if words[0].removeprefix(".venv/bin/") == "hocket":
        parse(["hocket", *words[1:]], monkeypatch)
    if not words[0].startswith("python") or words[1] != "-m":
        script = words[1] if words[0].startswith("python") else words[0]
        assert "/" not in script or not script.endswith(".py") or (ROOT / script).is_file(), script
        return
    module, rest = words[2], words[3:]
    if not module.startswith("hocket."):
        return
    found = find_spec(module)
    assert found is not None, module
    if found.submodule_search_locations is not None:
        found = find_spec(f"{module}.__main__")
        assert found is not None and found.origin is not None, module
    source = Path(found.origin or "").read_text()
    assert "__main__" in source, module
    if rest and re.search(r"\bparse_args\(", source):
        monkeypatch.setattr(sys, "argv", [module, *rest])
        through(lambda: runpy.run_path(str(found.origin), run_name="__main__"), rest, monkeypatch)


def through(main: Any, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it up to where its parser has taken the words; what `hocket run` would start is looked at as well."""
    real = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> None:
        found = real(self, args, namespace)
        if self.prog == "hocket run":
            inner = [word for word in found.command if word != "--"]
            if inner:
                program(inner, monkeypatch)
        raise Taken

    def error(self: argparse.ArgumentParser, message: str) -> None:
        raise Refused(message)

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patched.setattr(argparse.ArgumentParser, "error", error)
        patched.setattr(sys, "argv", ["hocket", *words])
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                main()
            except (Taken, SystemExit) as end:
                assert isinstance(end, Taken) or end.code in (0, None)


MAKEFILE, PROJECT = (ROOT / "Makefile").read_text(), (ROOT / "pyproject.toml").read_text()


def test_parsers_take_the_command_lines_of_the_docs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines in blocks are whole; one in a sentence may lack words at its end."""
    monkeypatch.delenv("COMP_LINE", raising=False)
    wrong, taken = [], 0
    for path in PAGES:
        whole = [(line, True) for line in lines(path)]
        for line, is_whole in [*whole, *((line, False) for line in INLINE.findall(path.read_text()))]:
            words = command(line)
            if not words or len(words) == 1 and not is_whole:
                continue
            try:
                parse([word for word in words if word != "..."], monkeypatch)
                taken += 1
            except Refused as why:
                if is_whole or not re.search("the following arguments are required|expected one argument", str(why)):
                    wrong.append(f"{path.name}: {line}: {why}")
            except AssertionError as why:
                wrong.append(f"{path.name}: {line}: there is no {why}")
    assert not wrong
    assert taken > 120


def test_short_ones_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Others start ranks (test_cli.py, test_readme.py), or take longer."""
    monkeypatch.delenv("COMP_LINE", raising=False)
    not_here = {"...", "line", "line,ring", "1024"}  # line: tuning.md's own, see test_declared.py
    ran = {}
    for line in {line for path in PAGES for line in [*lines(path), *INLINE.findall(path.read_text())]}:
        words = command(line)
        if words[:1] == ["hocket"] and {*words[1:2]} <= {"show", "simulate", "advise"} and not not_here & {*words}:
            ran[line] = len(words) < 3 or "--help" in words or cli.main(words[1:]) == 0
    assert all(ran.values()), (ran, capsys.readouterr().err)
    assert len(ran) >= 4, ran


@pytest.mark.more
def test_make_run() -> None:
    """The README's first command, in the environment that runs the tests."""
    command = ["make", "run", "--no-print-directory", f"VENV={sys.prefix}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"build/[\w/.]+", done.stdout.splitlines()[-1])
    assert told and all((ROOT / path).is_file() for path in told)


def test_a_wrong_line_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="unrecognized arguments: --sizes"):
        parse(["hocket", "show", "ring", "--sizes", "4"], monkeypatch)
    with pytest.raises(Refused, match="not a number of ranks"):
        parse(["hocket", "run", "-n", "0", "--", "hocket", "doctor"], monkeypatch)
    with pytest.raises(Refused, match="unrecognized arguments: --jobs"):
        parse(["hocket", "run", "-n", "2", "--", "hocket", "doctor", "--jobs"], monkeypatch)
    for words in (["make", "tests"], ["pip", "install", "hocket[torches]"], ["python", "examples/none.py"]):
        with pytest.raises(AssertionError):
            parse(words, monkeypatch)


def test_the_page_of_commands_is_theirs() -> None:
    """`python -m hocket.tools.shell.page > docs/commands.md` makes it."""
    assert (ROOT / "docs" / "commands.md").read_text() == page.page()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_installed_once(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ZDOTDIR", "COMP_LINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    (tmp_path / f".{shell}rc").write_text("alias l=ls")
    for said in ("has one more line", "has it already"):
        assert cli.main(["complete", "--install"]) == 0 and said in capsys.readouterr().out
    first, second = (tmp_path / f".{shell}rc").read_text().splitlines()
    assert first == "alias l=ls" and "'hocket complete' hocket" in second
    with pytest.raises(SystemExit, match="2"):
        monkeypatch.setenv("SHELL", "/bin/fish")
        cli.main(["complete"])
