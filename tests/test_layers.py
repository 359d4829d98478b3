"""The floors: whoever stands on one imports what lies below it, and nothing beside or above.

    examples, tests
    lab                                     programs of a checkout that measure all below
    bench  tools                            measure the library, and know its inside
    conformance                             judges it, and knows its inside; has the jobs and hosts of what measures
    frameworks                              stand on the public door alone: PUBLIC
    training                                so does this, on compressors
    compressors  observe                    and these; observe replays with algorithms
    collectives                             what the calls mean, and the engine that runs them
    algorithms   transports   kernels       leaves: never import each other
    control                                 how ranks find, trust and hear each other
    system                                  the operating system, drivers, OpenSSL; knows no rank
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import hocket
from hocket.collectives.communicator.communicator import PARTS
from support.statements import statements

ROOT = Path(__file__).parents[1]
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".h", ".cuh")
LIBRARY = {"system", "control", "algorithms", "transports", "kernels", "collectives"}
FLOOR = {"arguments", "errors"}
"""Modules of `hocket` that all folders import."""
PUBLIC = {*FLOOR, "codecs", "extending", "hosting", "recording"}
"""The public door: what stands on the hub imports these modules of `hocket`, and the names of `hocket.__all__`."""
MAY: dict[str, set[str]] = {
    "system": {"system"},
    "control": {"control", "system"},
    "algorithms": {"algorithms"},
    "kernels": {"kernels"},
    "transports": {"transports", "control", "system"},
    "collectives": LIBRARY,
    "tools": {*LIBRARY, "tools", "bench", "observe"},
    "compressors": {"compression"},
    "training": {"training", "compression"},
    "observe": {"observe", "algorithms"},
    "conformance": {*LIBRARY, "tools", "conformance", "compression", "training"},
    "bench": {*LIBRARY, "bench", "conformance", "compression"},
    "lab": {*LIBRARY, "tools", "bench", "lab", "conformance", "compression", "observe", "training"},
    "frameworks/torch": {"torch", "compression", "training"},
    "frameworks/horovod": {"horovod", "compression", "tensorflow", "torch", "training"},
    "frameworks/ray": {"ray"},
    "frameworks/dask": {"dask"},
    "frameworks/jax": {"jax", "xla"},
    "frameworks/xla": {"xla"},
    "frameworks/spark": {"spark"},
    "frameworks/lightgbm": {"lightgbm"},
    "frameworks/xgboost": {"xgboost"},
    "frameworks/flower": {"flower", "compression"},
    "frameworks/tensorflow": {"tensorflow", "training"},
    "frameworks/keras": {"keras", "tensorflow", "jax", "compression", "training"},
}
"""Each folder may import these of hocket's packages."""
PACKAGES = {folder: folder.rpartition("/")[2] for folder in MAY} | {"compressors": "compression"}
"""Each folder's name in `import hocket.X`: CPython 3.14 has a `compression` of its own."""
ABOVE = [each for each in MAY if each in ("compressors", "observe", "training") or each.startswith("frameworks/")]
"""Folders that stand on the public door alone."""
EXCEPTIONS = {
    "collectives/communicator/observing.py": "observe",  # comm.trace makes a file of records: loaded when it is called
    "frameworks/torch/debug.py": "observe",  # loaded by who starts torch's debug server
    "frameworks/torch/calls/quick.pyx": "collectives",  # the table of calls made before, in Cython
    "frameworks/xla/serving.pyx": "collectives",  # likewise
    "tools/rank.py": "xla",  # variables that a program of JAX's needs before it begins
    "bench/shared_cores.py": "torch",  # the benchmarks of it
    "lab/frameworks/torch_backend.py": "torch",
    "conformance/gpu_check/torch/group.py": "torch",
    "conformance/gpu_check/torch/training.py": "torch",
    "lab/compression/ddp.py": "torch",
    "lab/outer/characters.py": "torch",
    "lab/outer/peers/sites.py": "torch",
    "lab/large/beside_torch.py": "torch",
    "lab/large/factored.py": "torch",
    "lab/large/layouts.py": "torch",
    "lab/overlap/training.py": "torch",
    "lab/server/fashion.py": "torch",
    "lab/rivals/horovod.py": "horovod",
    "lab/frameworks/jax_calls.py": "jax",  # the benchmarks of them
    "lab/frameworks/jax_psum.py": "xla",
    "lab/frameworks/keras_steps.py": "keras",
    "lab/frameworks/lightgbm_training.py": "lightgbm",
    "lab/frameworks/ray_groups.py": "ray",
}
ROOMS = (
    "plans", "arrays", "recording", "base", "calls", "delegates", "choice", "engine", "waiting", "job", "members",
    "failures", "measuring", "layouts", "quick", "gpu", "communicator", "elastic", "start", "publishing",
)  # fmt: skip
"""The rooms of collectives/, each on those before it; on all of them its own modules."""
UPWARDS = {
    "collectives/elastic/pairs.py": "start",  # `connect` begins as `init` does: in a function
    "collectives/waiting/selector.pyi": "communicator",  # a stub, with the types that users see
}
"""Files that import from a room above their own, and that room."""
FORBIDDEN = {
    "algorithms": ("numpy", "torch"),  # they never see a byte
    "kernels": ("torch",),
    "transports": ("torch",),
    "control": ("numpy", "torch"),
    "training": ("torch",),
    "system": ("torch",),
}
HIDDEN = {*PARTS, "planner", "session", "_queued"}
"""Attributes of the hub's objects that only the hub reads: with one of them a line reaches through the door."""
REACHES = {"frameworks/torch/calls/quick.pyx": {"shortcut"}}
"""The one exception, from the same file."""
APART = {
    "jobs",  # the whole library at once
    "support",  # what tests share
    "guest",  # in a virtual machine with RDMA devices
    "fuzz", "sanitize", "plugins",  # C programs and corpora; scripts; packages of others
    "litmus",  # the order of memory, of all folders
    "frameworks/others",  # what `make test-frameworks` alone installs
    "frameworks/suites",  # other projects' own tests
}  # fmt: skip
"""Folders of tests that mirror no folder of the library, with all that is in them."""
MOST, LONGEST = 17, 400
"""Modules and headers of a folder, with its __init__; lines of a file."""
BIG = {"kernels/gpu"}
"""Folders with more: a CUDA file for each kernel."""
FILES = [(folder, path) for folder in MAY for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]


LOADS = re.compile(r"import_module|__import__")


@functools.cache
def imported(path: Path) -> list[str]:
    """Every module that this file imports, cimports or includes, as a dotted name."""
    text = path.read_text()
    if path.suffix in (".py", ".pyi"):
        nodes = list((ast.walk if LOADS.search(text) else statements)(ast.parse(text)))
        direct = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        direct += [word for node in nodes if isinstance(node, ast.Call) for word in loaded(node)]
        named = [(n.module or "", n.names) for n in nodes if isinstance(n, ast.ImportFrom)]
        assert not any(n.level for n in nodes if isinstance(n, ast.ImportFrom)), f"{path}: say import hocket.folder..."
        return direct + [f"{module}.{alias.name}" for module, names in named for alias in names]
    if path.suffix in (".h", ".cuh"):
        return ["hocket." + name.replace("/", ".") for name in re.findall(r'#include "([a-z_]+/[^"]+)"', text)]
    froms = re.findall(r"^\s*from\s+([\w.]+)\s+c?import\s+\(?([\w, ]+)", text, re.M)
    plain = re.findall(r"^\s*c?import\s+([\w., ]+)", text, re.M)
    headers = re.findall(r'^cdef extern from "([a-z_]+/[^"]+)"', text, re.M)
    names = [f"{module}.{name.strip()}" for module, several in froms for name in several.split(",")]
    names += [name.strip() for line in plain for name in line.split(",")]
    return names + ["hocket." + header.replace("/", ".") for header in headers]


def loaded(call: ast.Call) -> list[str]:
    """The modules that `import_module("hocket.any")` names; tables of names are not looked into."""
    name = ast.unparse(call.func).rpartition(".")[2]
    texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return texts if name in ("import_module", "__import__") else []


def wrong(folder: str, path: Path) -> list[str]:
    """The imports of a file that its floor does not allow."""
    allowed = MAY[folder] | {EXCEPTIONS.get(str(path.relative_to(ROOT)), "")}
    folders = set(PACKAGES.values())
    known = folders - allowed | (set() if folder not in LIBRARY else PUBLIC - FLOOR)
    found = []
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "hocket" and len(parts) > 1:
            closed = folder in ABOVE and parts[-1] != "h" and parts[1] not in {*folders, *PUBLIC, *hocket.__all__}
            if parts[1] in known or closed:
                found.append(name)
        if parts[0] in FORBIDDEN.get(folder, ()):
            found.append(name)
    return found


def room_of(words: Sequence[str]) -> str:
    """The room of a module of the hub; "" for those of no room."""
    return words[0] if words and words[0] in ROOMS else ""


def copied(file: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This file with one more line, in a tree of its own."""
    copy = tmp_path / file
    copy.parent.mkdir(parents=True)
    copy.write_text(f"{(ROOT / file).read_text()}\n{line}\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    return copy


def upwards(path: Path) -> list[str]:
    """The imports of a file of the hub that lead to a room above its own."""
    place = path.relative_to(ROOT)
    order = [*ROOMS, ""]
    here = order.index(room_of(place.parts[1:]))
    rooms = [room_of(name.split(".")[2:]) for name in imported(path) if name.startswith("hocket.collectives.")]
    return [each for each in rooms if order.index(each) > here and each != UPWARDS.get(str(place))]


def reaches(path: Path) -> list[str]:
    """Where this file reads what only the hub reads: `comm.runner.share`, `hocket.collectives.start.default`."""
    if path.suffix != ".py":
        code = re.sub(r"#.*|^\s*(from|c?import)\b.*", "", path.read_text(), flags=re.M)
        found = re.findall(rf"[\w\])]\.({'|'.join(HIDDEN)})\b", code)
    else:
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        of_hocket = {id(node) for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "hocket"}
        found = [node.attr for node in nodes if node.attr in HIDDEN or id(node) in of_hocket and node.attr in LIBRARY]
    return [each for each in found if each not in REACHES.get(str(path.relative_to(ROOT)), ())]


def test_a_file_knows_only_what_lies_below() -> None:
    offences = {str(path.relative_to(ROOT)): found for folder, path in FILES if (found := wrong(folder, path))}
    assert not offences, "these files import what their floors do not allow"


def test_the_rooms_of_the_hub_stand_on_each_other() -> None:
    hub = [path for folder, path in FILES if folder == "collectives"]
    assert {path.parent.name for path in hub if path.parent.parent.name == "collectives"} == set(ROOMS)
    assert not {str(path.relative_to(ROOT)): found for path in hub if (found := upwards(path))}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("collectives/engine/queue.py", "from hocket.collectives.communicator.runner import Runner\n"),
        ("collectives/job/world.py", "if 1:\n    from hocket.collectives.elastic.elastic import Elastic\n"),
        ("collectives/waiting/work.py", "def late():\n    from hocket.collectives.start import default\n"),
        ("collectives/plans/plan.pyx", "from hocket.collectives.quick.shortcut cimport Shortcut\n"),
        ("collectives/start/default.py", "from hocket.collectives.grid import Grid\n"),
    ],
)
def test_an_import_from_a_room_above_is_noticed(
    file: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(file, line, tmp_path, monkeypatch)
    assert len(upwards(copy)) == 1


def test_what_stands_on_the_hub_comes_through_the_door() -> None:
    above = [path for folder, path in FILES if folder in ABOVE]
    offences = {str(path.relative_to(ROOT)): found for path in above if (found := reaches(path))}
    assert not offences, f"these files read what the hub keeps: what they need belongs to {sorted(PUBLIC)}"


def test_every_room_is_seen() -> None:
    """Folders of folders too, C headers and Cython: else the test above would see nothing."""
    seen = {str(path.parent.relative_to(ROOT)) for _, path in FILES}
    assert {"collectives/engine", "transports/shm", "control", "system/cuda", "kernels/gpu"} <= seen
    assert {path.suffix for _, path in FILES} == set(SUFFIXES)
    names = {name for folder, path in FILES if folder == "collectives" for name in imported(path)}
    for leaf in ("algorithms", "transports", "kernels", "control", "system"):
        assert any(re.match(rf"hocket\.{leaf}\b", name) for name in names)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("control/protocol/faults.py", "from hocket.transports.base import Channels\n"),
        ("algorithms/language/registry.py", "import numpy\n"),
        ("transports/shm/ring.h", '#include "kernels/dtypes.h"\n'),
        ("kernels/cpu/reduce.pyx", "from hocket.system.cuda cimport driver\n"),
        ("collectives/job/world.py", "from hocket.tools import doctor\n"),
        ("collectives/job/world.py", "import importlib; importlib.import_module('hocket.observe.session')\n"),
        ("collectives/engine/run.pxd", 'cdef extern from "bench/any.h":\n    pass\n'),
        ("collectives/job/place.py", "from hocket import hosting\n"),
        ("compressors/step.py", "from hocket.kernels.codecs import Codec\n"),
        ("training/__init__.py", "import torch\n"),
        ("training/__init__.py", "from hocket.observe import clocks\n"),
        ("frameworks/ray/store.py", "from hocket import dtypes\n"),
        ("frameworks/ray/store.py", "from hocket.collectives.job import place\n"),
        ("frameworks/jax/handler.pyx", "from hocket.collectives.quick.shortcut cimport Shortcut\n"),
        ("frameworks/dask/launch.py", "import hocket.torch\n"),
    ],
)
def test_a_wrong_import_is_noticed(file: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copied(file, line, tmp_path, monkeypatch)
    folder = next(each for each in MAY if file.startswith(f"{each}/"))
    assert len(wrong(folder, copy)) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("frameworks/torch/group/process_group.py", "comm.runner.share(1)"),
        ("frameworks/torch/group/process_group.py", "comm.reporter.give_up"),
        ("frameworks/jax/calls.py", "self.comm.membership"),
        ("frameworks/horovod/stall.py", "found = comms()[0].ending"),
        ("frameworks/horovod/job.py", "job.world.config, job.rank"),
        ("frameworks/xgboost/workers.py", "comm.session.lost"),
        ("compressors/dense.py", "comm.messenger.share_among"),
        ("compressors/dense.py", "comm.planner.plan"),
        ("compressors/dense.py", "work._queued.status"),
        ("frameworks/ray/launch.py", "hocket.collectives.start.default"),
        ("frameworks/jax/handler.pyx", "x = comm.shortcut  # the table"),
        ("frameworks/torch/calls/quick.pyx", "x = self.comm.runner"),
    ],
)
def test_a_reach_through_the_door_is_noticed(
    file: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(file, line, tmp_path, monkeypatch)
    assert len(reaches(copy)) == 1


def unmirrored(tests: Path) -> list[str]:
    """Folders with tests that are neither a folder of the library nor in APART."""
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path()}
    apart = [each for each in folders if any(str(part) in APART for part in (each, *each.parents))]
    return sorted(str(each) for each in folders.difference(apart) if not any((ROOT / each).glob("*.p[xy]*")))


def test_tests_mirror_the_folders() -> None:
    assert not unmirrored(ROOT / "tests"), "tests of a folder are in the folder of its name"
    untested = {folder for folder in MAY if not any((ROOT / "tests" / folder).rglob("test_*.py"))}
    apart = ("dask", "flower", "jax", "lightgbm", "spark", "tensorflow", "xgboost")
    assert untested == {f"frameworks/{each}" for each in apart}


def test_a_folder_that_mirrors_nothing_is_noticed(tmp_path: Path) -> None:
    for folder in ("control", "jobs/of_many", "tcp", "transports/tcp"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "test_any.py").touch()
    assert unmirrored(tmp_path) == ["tcp"]


def test_what_tests_share_lies_in_support() -> None:
    """With `python -m pytest` the folder `collectives` is that of the checkout, not that of its tests."""
    beside = re.compile(rf"^(from|import) ({'|'.join(sorted({folder.partition('/')[0] for folder in MAY}))})\b", re.M)
    assert not [str(path) for path in (ROOT / "tests").rglob("*.py") if beside.search(path.read_text())]


def test_no_folder_is_a_heap() -> None:
    """Modules and headers that are read together: one idea each, and a folder that a reader sees at a glance."""
    stems: dict[Path, set[str]] = {}
    for _, path in FILES:
        stems.setdefault(path.parent, set()).add(path.stem)
    heaps = {str(folder.relative_to(ROOT)): len(names) for folder, names in stems.items() if len(names) > MOST}
    assert set(heaps) <= BIG, heaps
    long = {str(path.relative_to(ROOT)) for _, path in FILES if path.read_text().count("\n") > LONGEST}
    assert not long
