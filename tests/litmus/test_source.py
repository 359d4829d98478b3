"""The litmus programs and the source: each line that a program stands for is there, as strong, and none is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.litmus import ROOT, Program, programs
from support.ordered import Source

PROGRAMS, SOURCE = programs(), Source()
FOLDERS = ("collectives", "control", "frameworks", "kernels", "observe", "system", "training", "transports")
A_FLAG = "a flag: no data stands beside it"
LOCKED = "its other side holds the same lock, or the GIL"
CLOSING = "the descriptor goes, and nothing else is told by it"
ALONE = {
    ("collectives/arrays/arena.h", "hk_array"): "a number, for people",
    ("collectives/engine/drive.pyx", "drive"): "a number of engines, looked at for whether to look",
    ("collectives/engine/engine.pyx", "driven"): A_FLAG,
    ("collectives/engine/engine.pyx", "help"): A_FLAG,
    ("collectives/engine/engine.pyx", "repeat"): "its caller keeps other threads away, and nothing is pending",
    ("collectives/engine/engine.pyx", "claim"): "under the GIL, with nothing pending: nobody else claims it",
    ("collectives/gpu/meeting.pyx", "gave_up"): A_FLAG,
    ("collectives/gpu/meeting.pyx", "abort"): A_FLAG,
    ("collectives/quick/short_messages.pyx", "take"): A_FLAG,
    ("kernels/exact/modes.h", ""): "a register of this thread's own",
    ("collectives/recording/recorder.pyx", "touch_ahead"): "where to have pages ready; no record is read",
    ("collectives/engine/drive.pxd", "count_one"): "a number of calls, which nearly will do",
    ("collectives/waiting/lead.pyx", "drive_queued"): "flags; what it sleeps on it looks at again (news_nap)",
    ("collectives/waiting/lead.pyx", "lead"): LOCKED,
    ("collectives/waiting/lead.pyx", "stay"): A_FLAG,
    ("collectives/waiting/news.pyx", "after_nap"): "one sleeper less; a ring too many does no harm",
    ("collectives/waiting/progress.pxd", "all_put_off"): "a clock, looked at for whether to drive now or soon",
    ("collectives/waiting/progress.pxd", "awake"): "a clock, looked at for whether to drive now or soon",
    ("collectives/waiting/queued.pyx", "put_off"): LOCKED,
    ("collectives/waiting/progress.pyx", "advance_node"): A_FLAG,
    ("collectives/waiting/progress.pyx", "next_queued"): LOCKED,
    ("collectives/waiting/progress.pyx", "claim_beside"): LOCKED,
    ("collectives/waiting/progress.pyx", "unlist"): LOCKED,
    ("collectives/waiting/progress.pyx", "has_room"): LOCKED,
    ("collectives/waiting/progress.pyx", "submit"): LOCKED,
    ("collectives/waiting/progress.pyx", "begin"): LOCKED,
    ("collectives/waiting/progress.pyx", "follow"): LOCKED,
    ("collectives/waiting/progress.pyx", "waiting"): "a number of threads, looked at for whether to nap",
    ("collectives/waiting/queued.pyx", "cancel"): A_FLAG,
    ("transports/shm/receive.h", "hk_withdraw"): "who has taken what; no data is looked at behind it",
    ("transports/shm/receive.h", "hk_has_come"): "of which packet the word is; and that nothing was written",
    ("transports/shm/receive.h", "hk_ring_forget"): "that the producer writes no more; no data is looked at behind it",
    ("transports/shm/receive.h", "hk_invite"): "that nothing was refused yet; whoever refuses has seen the word",
    ("transports/shm/receive.h", "hk_take_by_stage"): "that the producer writes no more; all is written anew",
    ("transports/shm/receive.h", "hk_take_share"): "the word alone, which its last change made whole",
    ("transports/shm/send.h", "hk_write_share"): "a line of its own; and that it has written nothing more",
    ("collectives/waiting/queued.pyx", "look"): "the word alone: all calls end by it",
    ("collectives/waiting/queued.pyx", "drive_until"): "the word alone: all calls end by it",
    ("collectives/waiting/queued.pyx", "forked"): "the child has one thread",
    ("collectives/waiting/selector.pyx", "hk_disarm_bells"): "one sleeper less; a ring too many does no harm",
    ("collectives/waiting/selector.pyx", "unregister"): LOCKED,
    ("collectives/waiting/selector.pyx", "wake"): LOCKED,
    ("collectives/waiting/selector.pyx", "look"): A_FLAG,
    ("collectives/waiting/selector.pyx", "sleep"): LOCKED,
    ("kernels/gpu/flags.cuh", "hk_wait"): "flags: the host's word to stop, and the kernel's that it has",
    ("kernels/gpu/flags.cuh", "hk_meet"): A_FLAG,
    ("system/cuda/mark.h", "hk_mark_next"): "a number far behind what is written to end waits for it",
    ("system/cuda/mark.h", "hk_mark_release"): "a number far behind what is written to end waits for it",
    ("system/cuda/nccl.h", "hk_nccl_issue"): "a fence here; the other side sleeps between its word and its look",
    ("system/cuda/nccl.h", "hk_nccl_settled"): A_FLAG,
    ("system/wait.h", "hk_wait_end"): "one sleeper less; a ring too many does no harm",
    ("transports/mpi/call.h", "hk_mpi_call_fill"): A_FLAG,
    ("transports/mpi/call.h", "hk_mpi_call_test"): A_FLAG,
    ("transports/mpi/channel.h", "hk_mpi_close"): A_FLAG,
    ("transports/mpi/library.pyx", "end"): A_FLAG,
    ("transports/mpi/protocol.h", "hk_mpi_usable"): A_FLAG,
    ("transports/shm/ring.h", "hk_window_holds"): "a descriptor that goes once; the system is asked about it",
    ("transports/tcp/healing.h", "hk_line_breaks"): CLOSING,
    ("transports/tcp/healing.h", "hk_give_again"): LOCKED,
    ("transports/tcp/healing.pyx", "breaks"): CLOSING,
    ("transports/tcp/healing.pyx", "got"): CLOSING,
    ("transports/tcp/healing.pyx", "end"): CLOSING,
    ("transports/tcp/long/many.h", "hk_many_as"): "this thread waits by it, and no other reads it",
    ("transports/tcp/long/many.h", "hk_many_wait"): "this thread waits by it, and no other reads it",
    ("transports/tcp/long/many.h", "hk_many_peek"): "what is ready now: another stream tells by its epoll",
    ("transports/tcp/long/many.h", "hk_many_send"): "a number of streams, looked at for whether there are several",
    ("transports/tcp/long/many.pyx", "use"): "bits; each counts with its bit of `have` alone",
    ("transports/tcp/stream.pyx", "close"): CLOSING,
    ("transports/tcp/tls_channels.pyx", "close"): CLOSING,
    ("transports/verbs/channels.pyx", "attach"): "to be polled on; `nqp` behind it says that the channel is open",
    ("transports/verbs/end.h", "hk_v_drain"): A_FLAG,
    ("transports/verbs/ends.pyx", "end_close"): CLOSING,
    ("transports/verbs/reader.h", "hk_v_reader_goodbye"): A_FLAG,
    ("transports/verbs/writer.h", "hk_v_writer_goodbye"): A_FLAG,
}
"""(file, function): why no program is needed for a use of memory that others see."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.name)
def test_the_source_has_the_orders_of_the_program(program: Program) -> None:
    for number, thread in enumerate(program.threads):
        for statement in thread:
            assert not (why := SOURCE.fault(statement)), f"{program.path.name}, P{number}: {why}"
        assert not (why := SOURCE.disorder(thread)), f"{program.path.name}, P{number}: {why}"
        assert any(statement.lines for statement in thread), "a thread stands for something"


def test_every_use_is_proven_or_alone() -> None:
    proven = {line for program in PROGRAMS for thread in program.threads for each in thread for line in each.lines}
    unproven = [
        use for use in SOURCE.uses(FOLDERS)
        if (use.path, use.function) not in ALONE
        and not any((use.path, use.function) == (line.path, line.function) and line.text in use.text for line in proven)
    ]  # fmt: skip
    assert not unproven, "\n".join(f"{use.path} {use.function}: {use.text}" for use in unproven)
    assert not set(ALONE) - {(each.path, each.function) for each in SOURCE.uses(FOLDERS)}, "these are gone"


def test_the_documentation_has_all_programs_and_how_many_orders_each_needs() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| ([^|]+) \|$", (ROOT / "docs/architecture.md").read_text(), re.M))
    for program in PROGRAMS:
        needed = [needed for _, needed, _ in program.weakened]
        assert rows[program.name] == ("allowed" if program.allowed else f"{sum(needed)} of {len(needed)}")


RING = next(each for each in PROGRAMS if each.name == "ring_publish")
SEND, ATOMICS = "transports/shm/send.h", "system/atomics.h"
SEQ, LEN, NEXT = "    hk_store32(&line->seq, p->next);\n", "    line->len = len;\n", "    p->next++;\n"
RELEASES = "hk_store32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE)"


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        (SEND, SEQ, "    line->seq = p->next;\n", "has no longer `hk_store32(&line->seq"),
        (SEND, LEN + NEXT + SEQ, NEXT + SEQ + LEN, "no longer comes behind"),
        (ATOMICS, RELEASES, RELEASES.replace("RELEASE", "RELAXED"), "is relaxed now, and was release"),
    ],
    ids=["plain", "earlier", "relaxed"],
)
def test_a_lost_order_is_noticed(file: str, old: str, new: str, why: str, tmp_path: Path) -> None:
    for name in (SEND, ATOMICS, "kernels/gpu/cuda.cuh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text()
        assert name != file or old in text
        (tmp_path / name).write_text(text.replace(old, new) if name == file else text)
    writer, broken = RING.threads[0], Source(tmp_path)
    assert not any(map(SOURCE.fault, writer)) and not SOURCE.disorder(writer)
    assert any(why in found for found in [*map(broken.fault, writer), broken.disorder(writer)])
