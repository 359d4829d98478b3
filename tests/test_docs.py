"""The examples in the docstrings and in docs/, run; the pages' links and promises; the site."""

from __future__ import annotations

import ast
import doctest
import gc
import html
import importlib.util
import os
import pathlib
import pkgutil
import re
import runpy
import subprocess
import sys

import pytest

import hocket
from hocket.collectives.base.config import VARIABLES
from support import jobs
from support.cases import each

SOURCES = (".py", ".pyx", ".pxd", ".h", ".cuh")
MODULES = sorted(
    m.name for m in pkgutil.walk_packages(hocket.__path__, "hocket.") if not m.name.rpartition(".")[2].startswith("__")
)


def documented() -> list[str]:
    """Modules with examples, as their sources say: importing all takes each process of the test run five seconds."""
    found = []
    for name in MODULES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        source = pathlib.Path(spec.origin)
        if source.suffix == ".so":
            source = source.with_name(name.rpartition(".")[2] + ".pyx")
        if re.search(r"^ *>>> ", source.read_text(), re.M):
            found.append(name)
    return found


@each("name", documented())
@pytest.mark.usefixtures("empty_recorder")
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    gc.collect(1)  # the communicators that an example dropped: a process has 64 rings of records
    assert tried and not failed


def test_every_folder_is_walked() -> None:
    assert {name.split(".")[1] for name in MODULES} >= {"algorithms", "collectives", "kernels", "transports", "errors"}


@pytest.fixture
def datagrams(tmp_path: pathlib.Path) -> pathlib.Path:
    """The transport of docs/transports.md, as a package of its own."""
    page = (pathlib.Path(__file__).parent.parent / "docs" / "transports.md").read_text()
    (source,) = re.findall(r"```python\n(# datagrams\.py\n.*?)```", page, re.S)
    (entry,) = re.findall(r"```toml\n\[project\.entry-points\.\"(.*?)\"\]\n(.*?)\n```", page)
    (tmp_path / "datagrams.py").write_text(source)
    (tmp_path / "datagrams-1.dist-info").mkdir()
    (tmp_path / "datagrams-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: datagrams\nVersion: 1\n")
    (tmp_path / "datagrams-1.dist-info" / "entry_points.txt").write_text(
        "[{}]\n{}\n".format(entry[0], entry[1].replace('"', ""))
    )
    return tmp_path


def test_the_transport_of_the_page_keeps_the_laws(datagrams: pathlib.Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "hocket.conformance", "datagrams:Datagrams"]
    done = subprocess.run(command, cwd=datagrams, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    without = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("-")]
    assert without == ["closing_is_noticed:", "a_multicast_reaches_every_reader:"]


def test_the_transport_of_the_page_runs_a_job(datagrams: pathlib.Path) -> None:
    source = """
        import hocket, numpy as np
        with hocket.init() as comm:
            x = comm.allreduce(np.full(300001, comm.rank + 1.0))
            comm.allreduce(np.zeros(50001, "V12"), lambda a, b: a)
            print((x == 6).all(), "datagrams" in comm.explain())
    """
    path = os.pathsep.join([str(datagrams), *sys.path])
    assert jobs.run(3, source, HOCKET_TRANSPORT="datagrams", PYTHONPATH=path) == ["True True\n"] * 3


def test_every_promise_has_its_test() -> None:
    """docs/security.md names tests; a name without a file is of the file named before it."""
    root = pathlib.Path(__file__).parent.parent
    page, file, found = (root / "docs" / "security.md").read_text(), "", 0
    for path, name in re.findall(r"`(?:(tests/\S+\.py)::)?(test_\w+)`", page):
        file = path or file
        assert f"def {name}(" in (root / file).read_text(), f"{file} has no {name}"
        found += 1
    assert found > 50
    for path in re.findall(r"`(tests/\S+?\.py)", page):
        assert (root / path).is_file(), path

# --------------------------------------------------------------------------------------------- the pages


ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.md"))
"""Histories of the pages' figures: beside the site."""
NOT_VARIABLES = r"HOCKET_\w*_(?:H|CUH)"
"""The include guards."""


def prose(page: pathlib.Path) -> str:
    """Without what is fenced, in which a bracket is no link and a # no heading."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of its headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ +(.+?) *$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each("page", [*PAGES, *RESULTS])
def test_every_link_leads_somewhere(page: pathlib.Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))
    broken = []
    for link in links:
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if "://" not in link and not (there.is_file() and (not anchor or anchor in anchors(there))):
            broken.append(link)
    assert not broken


def test_each_method_has_its_rooms_and_its_proof() -> None:
    """A row of docs/methods.md links a table or a test, and its folders and files are there."""
    rows = re.findall(r"^\| (?!method|system|--)(.+) \|$", (ROOT / "docs" / "methods.md").read_text(), re.M)
    assert len(rows) > 35
    for row in rows:
        assert "](" in row, row
        for path in re.findall(r"`([a-z_]+/[a-z_/.]*)`", row):
            assert (ROOT / path).exists(), path


def test_every_page_is_linked_from_readme() -> None:
    text = PAGES[0].read_text() + (ROOT / "docs" / "api.md").read_text()
    assert [page.name for page in PAGES[2:] if f"{page.name})" not in text] == []


@each("page", PAGES)
def test_examples_are_python(page: pathlib.Path) -> None:
    """Examples that cannot run here (CuPy's) at least compile; others of this file and test_readme.py run."""
    for source in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        compile(source, page.name, "exec")


def test_every_page_is_in_the_sites_menu() -> None:
    tree = ast.parse((ROOT / "docs" / "conf.py").read_text())
    (menu,) = (
        ast.literal_eval(node.value) for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MENU"
    )  # fmt: skip
    listed = [page for pages in menu.values() for page in pages]
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "docs").glob("*.md"))


def test_every_variable_is_on_its_page() -> None:
    """docs/configuration.md names what the code reads, and nothing else; its table says what `hocket doctor` says."""
    folders = [each for each in ROOT.iterdir() if each.is_dir() and each.name not in ("build", "tests", "docs")]
    files = [path for each in folders if each.name[0] != "." for path in each.rglob("*.*") if path.suffix in SOURCES]
    found = {name for path in [ROOT / "setup.py", *files] for name in re.findall(r"\bHOCKET_[A-Z_]+", path.read_text())}
    read = {name for name in found if not re.fullmatch(NOT_VARIABLES, name)}
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert set(re.findall(r"`(HOCKET_[A-Z_]+)`", page)) == read
    rows = re.findall(r"^\| `(HOCKET_\w+)` \| ", page.partition("## Set by hocket run")[0], re.M)
    assert rows == [each.name for each in VARIABLES]


def test_each_command_is_a_program() -> None:
    """`python -m hocket...`: the module is there and does something when it is run."""
    folders = [ROOT, ROOT / "docs", ROOT / "bench" / "results"]
    pages = [ROOT / "Makefile", *(page for folder in folders for page in folder.glob("*.md"))]
    names = {name for page in pages for name in re.findall(r"-m (hocket[\w.]*\w)", page.read_text())}
    names.remove("hocket.lab.NAME")
    assert len(names) > 50 and not [name for name in sorted(names) if not is_program(name)]


def is_program(name: str) -> bool:
    path = ROOT / "src" / name.replace(".", "/")
    if path.is_dir():
        return (path / "__main__.py").exists()
    file = path.with_suffix(".py")
    return file.exists() and 'if __name__ == "__main__"' in file.read_text()


@pytest.mark.more
def test_the_site_is_built_without_a_warning(tmp_path: pathlib.Path) -> None:
    """`make docs`."""
    words = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-c", "docs", "."]
    done = subprocess.run([sys.executable, *words, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "docs" / "reference.html").read_text()
    assert [name for name in hocket.__all__ if not is_shown(name, reference)] == []
    assert "end_with_job" not in reference


def is_shown(name: str, reference: str) -> bool:
    """Has this public name a place in the reference?  Functions on the default communicator: as its methods."""
    places = (f"hocket.{name}", f"hocket.Communicator.{name}", f"hocket.errors.{name}")
    return any(f'id="{place}"' in reference for place in places)


# --------------------------------------------------------------------------------------------- the architecture


STEP = re.compile(r"^\| \d+ \| .* \| `([\w/.]+)` \| `([\w.]+)` \|$", re.M)
ARCHITECTURE = ROOT / "docs" / "architecture.md"


def defines(file: pathlib.Path, name: str) -> bool:
    """Does it define this function, class or struct, whatever the language?"""
    kind = r"\} |[\w *]+[ *]" if file.suffix == ".h" else r" *(?:async )?(?:def|class|c?p?def [\w *,.]+) "
    return re.search(rf"^(?:{kind}){name}\b", file.read_text(), re.M) is not None


@each("step", sorted(set(STEP.findall(ARCHITECTURE.read_text()))))
def test_every_step_of_a_trace_is_there(step: tuple[str, str]) -> None:
    path, name = step
    file = ROOT / path
    assert file.is_file() and all(defines(file, part) for part in name.split("."))


def test_there_are_five_traces() -> None:
    traces = ARCHITECTURE.read_text().split("\n## Trace: ")[1:]
    rows = [re.findall(r"^\| \d+ \| .*", trace, re.M) for trace in traces]
    assert [len(STEP.findall(trace)) for trace in traces] == [len(each) for each in rows] and len(rows) == 5


def test_every_room_is_on_the_page() -> None:
    tops = ("system", "control", "algorithms", "transports", "kernels", "collectives", "tools", "bench", "lab",
            "conformance", "compressors", "observe", "training")
    found = {init.parent.relative_to(ROOT) for top in tops for init in (ROOT / top).rglob("__init__.py")}
    rooms = {f"{room}/" for room in found if len(room.parts) > 1}
    page = ARCHITECTURE.read_text()
    assert set(re.findall(r"^\| `([\w/]+/)` \| ", page.partition("## Rooms")[2].partition("\n## ")[0], re.M)) == rooms
    assert [top for top in tops if f"`{top}/`" not in page] == []


def test_a_room_says_the_same_of_itself() -> None:
    """The first paragraph at its door, its __init__.py, is the one on the page."""
    for room, sentence in re.findall(r"^\| `([\w/]+)/` \| (.+) \|$", ARCHITECTURE.read_text(), re.M):
        said = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text()))
        assert said is not None and said.partition("\n\n")[0].rstrip(".").lower() == sentence.rstrip(".").lower(), room


def test_the_picture_of_the_floors_is_the_codes() -> None:
    """`python docs/floors.py` draws it anew."""
    floors = runpy.run_path(str(ROOT / "docs" / "floors.py"))
    assert (ROOT / "docs" / "floors.svg").read_text() == floors["picture"]()
    assert ("collectives", "transports") in floors["between_folders"](floors["edges"]())
    assert floors["way"]()[:2] == ["collectives/start", "collectives/communicator"]


def test_the_picture_has_every_room_of_the_hub() -> None:
    floors = runpy.run_path(str(ROOT / "docs" / "floors.py"))
    rooms = {init.parent.name for init in (ROOT / "collectives").glob("*/__init__.py")}
    assert rooms == {room for row in floors["ROWS"] for room in row}


def test_the_pictures_are_of_their_pages_tables(tmp_path: pathlib.Path) -> None:
    """`python docs/pictures.py` draws them anew."""
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    drawings = {
        "compression-time.svg": "times", "compression-accuracy.svg": "accuracies",
        "less-accuracy.svg": "outer_accuracies", "less-time.svg": "outer_times",
    }  # fmt: skip
    for name, draw in drawings.items():
        pictures[draw](tmp_path / name)
        drawn, kept = ((folder / name).read_text() for folder in (tmp_path, ROOT / "docs"))
        # What matplotlib writes around them differs from version to version.
        assert re.findall(r"<text.*?>(.*?)</text>", drawn) == re.findall(r"<text.*?>(.*?)</text>", kept)
        assert len(re.findall(r"<(use|path) ", drawn)) == len(re.findall(r"<(use|path) ", kept)) > 10


def test_every_method_is_named_in_the_picture_of_accuracies() -> None:
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    _, *rows = pictures["table"]("method | bits of a parameter")
    named = re.findall(r"<text.*?>(.*?)</text>", (ROOT / "docs" / "compression-accuracy.svg").read_text())
    assert len(rows) > 15
    for row in rows:
        assert any(html.unescape(text).startswith(row[0].replace("`", "") + " ") for text in named), row[0]
