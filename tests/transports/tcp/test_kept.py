"""A stream keeps what its peer may lack (kept.h), in every order; and each law breaks without its line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support import headers
from support.compiled import compiled

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "tests" / "transports" / "tcp" / "kept.c"
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
         "-fno-sanitize-recover=all"]  # fmt: skip


def walked(folder: Path, include: Path) -> str:
    program = compiled(folder / "kept", [SOURCE], *FLAGS, f"-I{include}")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, env={})
    return done.stdout if done.returncode in (0, 1) else "a sanitizer: " + done.stderr


def test_no_order_with_three_cuts_breaks_a_law(tmp_path: Path) -> None:
    told = walked(tmp_path, ROOT)
    assert told.startswith("ok ") and int(told.split()[1]) > 3000, told


COUNTED = "    if (n == 0) return;\n    hk_kept_copy(k, k->sent, from, n);\n    k->sent += n;\n    k->given += n;\n"
LINES = {
    "the old ring's bytes are taken over": ("        memcpy(ring + to, k->ring + from, n);\n", ""),
    "to the place of each": ("to = at & (room - 1);", "to = from;"),
    "the ring has a bound": ("while (room < wanted && room < HK_KEPT_MOST)", "while (room < wanted)"),
    "a name is of one place in memory": ("k->sent + n, from};", "k->sent + n, from + 1};"),
    "a name goes on where the last one ended": ("== from) last->to += n;", "== from) last->to += n + 1;"),
    "what changes is copied before": ("else hk_kept_copy(k, x.from + has, x.at + has, all - has);", ""),
    "from where it is still lacking": ("x.from + has, x.at + has, all", "x.from + has, x.at, all"),
    "and no more of it is named": ("    hk_store32(&k->names, left);\n", ""),
    "what the peer has is not named": ("    if (gone) hk_store32(&k->names, k->names - gone);\n", ""),
    "and the rest moves up": ("memmove(k->name, k->name + gone, k->names * sizeof *k->name);", "(void)0;"),
    "a new connection reads nothing of the caller's": ("    hk_kept_fill(k, NULL, 0);\n    return 1;", "    return 1;"),
    "what is free is what is not held": ("k->room - held < wanted ? k->room - held : wanted", "wanted"),
    "it grows before one waits": ("hk_kept_grow(k, held + wanted);", "(void)0;"),
    "what is sent goes around": ("first = n < k->room - to ? n : k->room - to;", "first = n;"),
    "what is sent is counted": (COUNTED, COUNTED.replace("    k->sent += n;\n", "")),
    "what is given, too": (COUNTED, COUNTED.replace("    k->given += n;\n", "")),
    "nobody has what was not given": ("if (count > k->given) return 0;", ""),
    "an old word takes nothing back": ("if (count > k->acked) k->acked = count;", "k->acked = count;"),
    "a word counts": ("if (count > k->acked) k->acked = count;", ""),
    "what is forgotten is not promised": ("count < k->acked || count > k->sent", "count > k->sent"),
    "nor what was never sent": ("count < k->acked || count > k->sent", "count < k->acked"),
    "it goes on where the receiver is": ("k->acked = k->given = count;", "k->acked = count;"),
    "the next bytes begin there": ("from = k->given & (k->room - 1), left", "from = k->acked & (k->room - 1), left"),
    "and end with the ring": ("return left < k->room - from ? left : k->room - from;", "return left;"),
    "a receiver says what it has": ("return got - (said > told ? said : told) >= HK_TELL || got - told",
                                    "return got - got > said && got - told"),
    "and for sure in a word": (" || got - told >= HK_TELL_SURE", " || got - told > got"),
    "and no other bytes are its word": ("(uint32_t)(head >> 32) == hk_frame_check(0, *got)", "1"),
}
"""A line, and another in its place."""


@pytest.mark.parametrize("what", LINES)
def test_a_law_breaks_without_its_line(what: str, tmp_path: Path) -> None:
    headers.broken(tmp_path, *LINES[what], "transports/tcp/kept.h")
    told = walked(tmp_path, tmp_path)
    assert not told.startswith("ok"), told
