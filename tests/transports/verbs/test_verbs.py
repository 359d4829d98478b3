"""The verbs transport, over a stand-in for libibverbs that checks what a device checks.  Over RDMA: make test-verbs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import headers
from support.compiled import compiled

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
TYPES = {0: "IB/RoCE v1", 1: "IB/RoCE v1", 2: "RoCE v2"}
ONLY = {"windows": "test", "no windows": "registered or key or late or refused", "late": "registered"}
"""Which tests of over_fake.py and over_fake_devices.py, as each setting takes its time."""
SETTINGS = {"windows": "windows=1", "no windows": "windows=0", "late": "windows=1,delay=30"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has our RDMA devices."""
    place = tmp_path_factory.mktemp("machine")
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{ROOT}"]
    compiled(place / "libibverbs.so.1", [HERE / "fake_verbs.c"], *flags, "-lpthread")
    for name in ("fake0", "fake1"):
        port = place / "infiniband" / name / "ports" / "1"
        (port / "gid_attrs" / "types").mkdir(parents=True)
        (port / "link_layer").write_text("Ethernet\n")
        for index, kind in TYPES.items():
            (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    found = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ, "LD_LIBRARY_PATH": path, "PYTHONPATH": found, "FAKE_SYSTEM": str(place / "infiniband"),
    }  # fmt: skip


@pytest.mark.timeout(300)  # a suite of its own: 20 s, alone
@pytest.mark.parametrize(
    "setting", ["windows", *(pytest.param(each, marks=pytest.mark.more) for each in ("no windows", "late"))]
)
def test_over_the_stand_in(setting: str, machine: dict[str, str]) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "no:cacheprovider", "--durations", "5"]
    env = {**machine, "FAKE_VERBS": SETTINGS[setting]}
    command += ["-p", "fake_verbs", str(HERE / "over_fake.py"), str(HERE / "over_fake_devices.py"), "-k", ONLY[setting]]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize("setting", ["windows", "no windows"])
def test_the_conformance_command(setting: str, machine: dict[str, str]) -> None:
    env = {**machine, "FAKE_VERBS": SETTINGS[setting]}
    command = [sys.executable, "-m", "hocket.conformance", "fake_verbs:VerbsTransport", "--law", "closing_is_noticed"]
    done = subprocess.run([*command, "--law", "both_directions_at_once"], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and done.stdout.count("kept ") == 2, done.stdout + done.stderr


# --- the C protocol under sanitizers

THREADS = ["-fsanitize=thread"]
MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
HOSTILE, WORDS, SILENCE = ("hostile", 1, 2000), ("words", 1, 2000), ("silence", 1, 1)
SOON = ["-DHK_V_SILENT_NS=200000000ull", "-DHK_V_ASK_NS=20000000ull"]


def build(folder: Path, sanitizer: list[str], include: Path = ROOT) -> Path:
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-parameter"]
    flags += [*sanitizer, f"-I{include}", "-lpthread"]
    return compiled(folder / "verbs_stress", [HERE / "verbs_stress.c"], *flags)


def run(program: Path, *job: object, setting: str = "windows=1") -> tuple[int, str]:
    # A preloaded allocator or sanitizer of the test run itself must not leak into this program.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    environment |= {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
    environment["FAKE_VERBS"] = setting
    command = [str(program), *map(str, job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.sanitize
def test_no_race_between_writer_and_reader(tmp_path: Path) -> None:
    program = build(tmp_path, THREADS)
    for setting in SETTINGS.values():
        assert run(program, "pair", 1, 100, setting=setting) == (0, "ok\n"), setting


@pytest.mark.sanitize
def test_memory_is_safe_from_hostile_peers(tmp_path: Path) -> None:
    program = build(tmp_path, MEMORY)
    for setting in ("windows=1", "windows=0"):
        for job in (("pair", 2, 100), HOSTILE, WORDS):
            assert run(program, *job, setting=setting) == (0, "ok\n"), (setting, job)


@pytest.mark.sanitize
def test_a_silent_device_is_noticed(tmp_path: Path) -> None:
    assert run(build(tmp_path, [*MEMORY, *SOON]), *SILENCE) == (0, "ok\n")


# --- what breaks it: (name, text of a header, text instead, the sanitizer and the job that notice)

MUTANTS = [
    ("a packet may begin anywhere", " || word >= HK_V_RING / HK_V_ALIGN", "", MEMORY, HOSTILE),
    ("a packet may have any length", "if (len > HK_V_PACKET || offset + sizeof p->head + len > HK_V_RING) e->status",
     "if (0) e->status", MEMORY, HOSTILE),
    ("packets that were never sent are read", "if (n > w->packets - w->finished) {", "if (0) {", MEMORY, WORDS),
    ("any offer may be invited", "o->state != HK_V_MADE || ", "", MEMORY, WORDS),
    ("to any queue pair", "word.qp - 1 >= (uint32_t)e->nqp - 1 || !hk_v_has_room(e, (int)word.qp)", "0", MEMORY, WORDS),
    ("an array stays in use after a failure", "        if (p->pin) hk_pins_end_use(r->pins, p->pin);\n", "",
     MEMORY, HOSTILE),
    ("the ring has always room", "|| w->head + skip + need - w->freed > HK_V_RING", "", THREADS, ("pair", 1, 100)),
    ("a piece is settled before it is written", "return rc == HK_AGAIN ? 0 : rc;\n}\n\nstatic void hk_v_writer_forget",
     "return rc == HK_AGAIN ? 1 : rc;\n}\n\nstatic void hk_v_writer_forget", THREADS, ("pair", 1, 100)),
    ("who receives never asks whether anybody is there", "    hk_v_ask(r->beside);\n", "", SOON, SILENCE),
    ("who sends never asks", "    hk_v_writer_poll(w);\n    hk_v_ask(w);\n", "    hk_v_writer_poll(w);\n", SOON,
     SILENCE),
]  # fmt: skip
HEADERS = [f"transports/verbs/{name}.h" for name in ("writer", "places", "reader")]


def test_what_breaks_it_still_stands() -> None:
    assert [m[0] for m in MUTANTS if not headers.stands(m[1], *HEADERS)] == []


@pytest.mark.sanitize
@pytest.mark.parametrize(("old", "new", "sanitizer", "job"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
def test_a_missing_check_is_noticed(old: str, new: str, sanitizer: list[str], job: Any, tmp_path: Path) -> None:
    headers.broken(tmp_path, old, new, *HEADERS)
    code, said = run(build(tmp_path, sanitizer, tmp_path), *job)
    assert code != 0, said
