"""`codec=` on GPU arrays: encoded, summed and decoded by kernels, with the bits of the host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.system.namespaces import hosts as namespaces
from hocket.transports.cuda_ipc.channels import SLOT as MAPPED_SLOT
from hocket.transports.pinned.channels import SLOT as PINNED_SLOT
from support.gpu import ranks as gpu_ranks
from support.gpu.cases import APART, DELAY, MORE
from support.two_hosts import job_on

WHY_NOT = namespaces.refusal()

CODED = """
{before}
from support.gpu import codecs as gpu_codecs
with alone() as comm:
    gpu_codecs.{what}
"""


@pytest.mark.parametrize("size", [2, MORE])
def test_the_bits_of_the_host(size: int, built: Path, tmp_path: Path) -> None:
    source = CODED.format(before="", what="everything(comm)")
    gpu_ranks.run(built, size, source, tmp_path, seconds=90, delay=DELAY)


@pytest.mark.parametrize(
    ("ipc", "slot"),
    [
        pytest.param(1, MAPPED_SLOT, id="mapped", marks=pytest.mark.more),
        pytest.param(0, PINNED_SLOT, id="pinned", marks=pytest.mark.gpu),
    ],
)
def test_messages_of_several_slots(ipc: int, slot: int, built: Path, tmp_path: Path) -> None:
    source = CODED.format(before="", what=f"in_slots_of(comm, {slot})")
    gpu_ranks.run(built, 2, source, tmp_path, seconds=90, ipc=ipc)


def test_where_kernels_of_all_ranks_meet(built: Path, tmp_path: Path) -> None:
    """These carry elements as they are, so they leave such calls to the others."""
    source = CODED.format(before=APART, what="beside_kernels_that_meet(comm)")
    gpu_ranks.run(built, 2, source, tmp_path, delay=DELAY)


@pytest.mark.gpu
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_between_hosts(built: Path, tmp_path: Path) -> None:
    source = CODED.format(before="", what="between_hosts(comm, comm.groups)")
    with (
        namespaces.hosts() as names, gpu_ranks.machine(built, delay=DELAY) as env,
        job_on(names, gpu_ranks.HEAD + source, tmp_path, **env) as run,
    ):  # fmt: skip
        ends = run.wait(60)
    for rank, end in enumerate(ends):
        assert end.code == 0 and "fake cuda:" not in end.err, (rank, end.err[-3000:])
