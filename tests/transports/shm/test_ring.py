"""The shared-memory protocol under ThreadSanitizer and AddressSanitizer; and that breaking it anywhere is noticed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import hocket
from hocket.errors import TransportError
from hocket.transports.shm.channels import RingChannels
from hocket.transports.shm.transport import RINGS
from hocket.transports.shm.window import Window, read_memory
from support import headers
from support.compiled import compiled

ROOT = Path(__file__).parents[3]
SOURCE = Path(__file__).parent / "ring_stress.c"
# The default compiler must be there: the extension was built with one.  The other is a bonus.
COMPILERS = ["gcc", *(["clang"] if shutil.which("clang") else [])]
THREADS = ["-fsanitize=thread"]
MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SOON = ["-DHK_STUCK_NS=2000000000ull"]
"""For what shall get stuck."""


def build(folder: Path, compiler: str, sanitizer: list[str], include: Path = ROOT) -> Path:
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", f"-I{include}"]
    return compiled(folder / "ring_stress", [SOURCE], *flags, *sanitizer, "-lpthread", compiler=compiler)


def run(program: Path, *arguments: object) -> tuple[int, str]:
    """Its exit code and output."""
    # A preloaded allocator or sanitizer of the test run itself must not leak into this program.
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    environment |= {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66", "ASAN_OPTIONS": "detect_leaks=0"}
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.sanitize
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_race_between_producer_and_consumers(compiler: str, tmp_path: Path) -> None:
    program = build(tmp_path, compiler, THREADS)
    for job in (("pair", 0, 800), ("pair", 2**32 - 300, 800), ("multicast", 2**32 - 200, 500),
                ("pair", 2**32 - 301, 800), ("multicast", 2**32 - 201, 500)):  # fmt: skip
        assert run(program, *job) == (0, "ok\n")


@pytest.mark.sanitize
@pytest.mark.parametrize("compiler", COMPILERS)
def test_memory_is_safe_from_honest_and_hostile_peers(compiler: str, tmp_path: Path) -> None:
    program = build(tmp_path, compiler, MEMORY)
    jobs = [("pair", 2**31 - 500, 2000), ("multicast", 2**32 - 500, 1000), ("marks", 0, 0)]
    jobs += [("hostile", seed, 20000) for seed in range(5)] + [("scribble", 1, 1000000)]
    jobs += [("foreign", seed, 3000) for seed in range(3)]
    for job in jobs:
        assert run(program, *job) == (0, "ok\n"), job


# --- what breaks it: (name, text of a header, text instead, the job that notices)

# With odd numbers nothing is read out of the producer's own memory.
PAIR, MANY, SLOTS = ("pair", 2**32 - 300, 500), ("multicast", 2**32 - 200, 400), ("multicast", 2**32 - 201, 1500)
FULL, FAR = ("pair", 2**32 - 301, 3000), ("pair", 2**32 - 300, 3000)
SLOTS_FAR = ("multicast", 2**32 - 200, 4000)
REST, SEQ = "line->tag = tag;\n    line->len = len;\n", "hk_store32(&line->seq, p->next);\n"
RACES = [
    ("seq is not a release", "hk_store32(&line->seq, p->next)", "hk_loose_store(&line->seq, p->next)", PAIR),
    ("seq is not an acquire", "hk_load32(&line->seq)", "hk_relaxed32(&line->seq)", PAIR),
    ("released is not a release", "hk_store32(&c->ring->released", "hk_loose_store(&c->ring->released", PAIR),
    ("released is not an acquire", "hk_load32(&p->ring->released)", "hk_relaxed32(&p->ring->released)", PAIR),
    ("seq before the rest", f"    {REST}    p->next++;\n    {SEQ}", f"    p->next++;\n    {SEQ}    {REST}", PAIR),
    ("a line is always free", "if (!hk_has_line(p)) return hk_wait_for_reader(p);", "", PAIR),
    ("one line too many", "return hk_is_released(p, p->next + 1 - HK_LINES);",
     "return hk_is_released(p, p->next - HK_LINES);", PAIR),
    ("a slot is always free", " || from + whole - p->given_back > p->slots_bytes", "", FULL),
    ("a slot is given back before its turn", " || !hk_is_released(p, p->free_at[p->oldest % HK_LINES])", "", FULL),
    ("a small slot is always free", " && hk_is_released(p, p->next + 1 - HK_SMALL_SLOTS)", "", PAIR),
    ("a slot wraps", "at + whole > p->slots_bytes ?", "at > p->slots_bytes ?", FULL),
    ("memory is given back at once", "if (hk_is_released(p, call->whole ? p->next : p->ref_until)) return 1;",
     "if (1 || call->whole) return 1;", PAIR),
    ("a part of a packet releases it", "if (c->taken < c->packet) return 0;", "c->taken = c->packet;", PAIR),
    ("both take the same", "if (!hk_swap64(&v->left, &word, hk_left_word(left))) continue;", "", FAR),
    ("what cannot be read is not asked for", "return hk_is_unreadable(c, n) ? hk_ask(c, c->taken) : (int)n;",
     "return (int)n;", FAR),
    ("what was asked for is there at once",
     "if (left.begin != left.end || hk_load32(&v->written) != left.begin) return HK_AGAIN;", "", FAR),
    ("what both copy and one cannot read is tried for ever", "if (c->unreadable) return hk_take_by_stage(c);", "", FAR),
    ("the stage is asked for while the packet is written",
     "if (hk_load32(&v->written) != left.begin && !hk_load32(&v->refused)) return HK_AGAIN;", "(void)v, (void)left;",
     FAR),
    ("the end of the stage cuts an element", "c->fetched - c->taken < want", "c->fetched == c->taken", FAR),
    ("who waits for a line writes nothing", "if (!hk_has_line(p)) return hk_wait_for_reader(p);",
     "if (!hk_has_line(p)) return HK_AGAIN;", FAR),
    ("who waits for several lines writes nothing",
     "if (!hk_has_line((hk_producer *)chs[i])) return hk_wait_for_readers(chs, n);",
     "if (!hk_has_line((hk_producer *)chs[i])) return HK_AGAIN;", SLOTS_FAR),
    ("who waits for a slot of several writes nothing",
     "if (!hk_shared_slot_is_free(m, s)) return hk_wait_for_readers(chs, n);",
     "if (!hk_shared_slot_is_free(m, s)) return HK_AGAIN;", SLOTS_FAR),
    ("a multicast slot is always free", "if (!hk_shared_slot_is_free(m, s)) return hk_wait_for_readers(chs, n);", "",
     SLOTS),
    ("a small multicast slot is always free", " && hk_shared_slot_is_free(m, s);", ";", SLOTS),
    ("only the first reader's slot counts", "for (int i = 0; i < m->readers[s]; i++)", "for (int i = 0; i < 1; i++)",
     SLOTS),
    ("only the first reader's line counts", "if (!hk_has_line((hk_producer *)chs[i]))",
     "if (i == 0 && !hk_has_line((hk_producer *)chs[i]))", MANY),
]  # fmt: skip
FAULTS = [
    ("old marks", "    if (p->next - until >= HK_LINES) return 1;\n", "", ("marks", 0, 0)),
    ("where + len overflows", "where <= c->window_bytes && len <= c->window_bytes - where",
     "where + len <= c->window_bytes", ("hostile", 1, 20000)),
    ("where alone is checked", " && len <= c->window_bytes - where", "", ("foreign", 1, 3000)),
    ("the length is not checked", "if (len > HK_INLINE) return hk_ring_fault(c);", "", ("hostile", 1, 20000)),
    ("memory is read without leave", "c->pid == HK_NO_MEMORY || ", "", ("hostile", 1, 20000)),
    ("more is seen than was fetched", "c->invited ? 0 : c->fetched - c->taken;",
     "c->packet - c->taken;", ("foreign", 1, 3000)),
    ("the stage is taken for the packet's begin", "hk_copy(dst, c->data + (c->taken - c->staged)",
     "hk_copy(dst, c->data + (c->taken)", ("multicast", 0, 1000)),
    ("the addresses are taken for the memory",
     "(size_t)file.st_size < c->window_reserved ? (size_t)file.st_size : c->window_reserved", "c->window_reserved",
     ("foreign", 1, 3000)),
    ("a packet may be empty", "len == 0 || len > c->length", "len > c->length", ("hostile", 1, 20000)),
    ("a packet may be longer than its message", "len == 0 || len > c->length", "len == 0", ("hostile", 1, 20000)),
    ("where is read twice", "c->data = c->window + where;", "for (int i = 0; i < 20; i++) hk_pause();\n"
     "c->data = c->window + hk_relaxed64(&line->u.ref.where);",
     ("scribble", 1, 1000000)),
]  # fmt: skip
HEADERS = ("transports/shm/send.h", "transports/shm/receive.h", "transports/shm/ring.h")


def test_what_breaks_it_still_stands() -> None:
    assert [m[0] for m in RACES + FAULTS if not headers.stands(m[1], *HEADERS)] == []


def mutant(folder: Path, old: str, new: str) -> Path:
    """A copy of the headers in which one of the protocol is broken."""
    headers.broken(folder, old, new, *HEADERS)
    atomics = folder / "system" / "atomics.h"
    loose = "static inline void hk_loose_store(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }\n"
    atomics.write_text(re.sub(r"#endif\s*\Z", loose + "#endif\n", atomics.read_text()))
    return folder


@pytest.mark.sanitize
@pytest.mark.parametrize(("old", "new", "job"), [m[1:] for m in RACES], ids=[m[0] for m in RACES])
def test_a_missing_order_is_noticed(old: str, new: str, job: tuple[str, int, int], tmp_path: Path) -> None:
    code, text = run(build(tmp_path, "gcc", [*THREADS, *SOON], mutant(tmp_path, old, new)), *job)
    assert code in (1, 2, 66), text


@pytest.mark.sanitize
@pytest.mark.parametrize(("old", "new", "job"), [m[1:] for m in FAULTS], ids=[m[0] for m in FAULTS])
def test_a_missing_check_is_noticed(old: str, new: str, job: tuple[str, int, int], tmp_path: Path) -> None:
    code, text = run(build(tmp_path, "gcc", MEMORY, mutant(tmp_path, old, new)), *job)
    assert code != 0 and text != "ok\n"


# --- the rings as Python sees them

def test_a_peer_cannot_name_a_block_outside_its_window() -> None:
    mine, theirs = Window(), Window()
    rings = RingChannels(0, [mine, theirs])
    offer = RingChannels(1, [mine, theirs]).offer()
    rings.open(1, offer)
    at = offer["at"]
    for wrong in (at + 64, 0, theirs.reserved - 4096, at + 4096, 2**64 - 4096, 2**63):
        with pytest.raises(TransportError, match="outside its window"):
            rings.open(1, {"at": wrong, "reads": []})


def test_memory_of_another_process_is_read_if_the_system_lets_us() -> None:
    window = Window()
    assert read_memory(os.getpid(), window.token_address, len(window.token)) == window.token
    with pytest.raises(OSError, match="No such process"):
        read_memory(2**22 + 1, window.token_address, 8)
    with pytest.raises(OSError, match="Bad address"):
        read_memory(os.getpid(), 8, 8)


def test_a_view_lies_within_the_window() -> None:
    window = Window()
    offset = window.alloc(5000)
    assert len(window.view(offset, 8192)) == 8192
    for wrong in ((offset, 8193), (2**64 - 4096, 8192), (offset + 4096, 2**64 - 1)):
        with pytest.raises(ValueError, match="outside"):
            window.view(*wrong)


@pytest.mark.parametrize("count", [1024, RINGS.eager // 4, RINGS.eager // 4 + 1])
def test_short_messages_in_shared_memory_do_not_wait_for_their_reader(count: int) -> None:
    """Two ranks that send before they receive: the lowering takes so many bytes for surely buffered."""

    def exchange(comm: hocket.Communicator) -> float:
        x = hocket.zeros(count, comm=comm)
        x[...] = comm.rank + 1
        comm.allreduce(x, algorithm="recursive_doubling", timeout=10)
        return float(x[-1])

    assert hocket.local_world(2).run(exchange) == [3.0, 3.0]
