"""A C program by the numbers of MPI's ABI, linked to hocket's library, under `hocket run`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hocket.xla import loading

PROGRAM = r"""
#include <mpi_abi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size, way = atoi(argv[1]), part_rank, one[3] = {1, 2, 3};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double sum[2] = {rank + 1, 0.5}, most[2];
    MPI_Allreduce(MPI_IN_PLACE, sum, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(sum, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Comm part, none;
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 7 : 8, -rank, &part);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 0, 0, &none);
    MPI_Comm_rank(part, &part_rank);
    long word = rank == 1 ? 41 : 0;
    MPI_Bcast(&word, 1, MPI_LONG, 1, MPI_COMM_WORLD);
    MPI_Barrier(part);
    if (way == 1) return MPI_Win_free(0);
    MPI_Status status;
    if (rank == 0) MPI_Send(one, 3, MPI_INT, size - 1, 5, MPI_COMM_WORLD);
    int room[8] = {0}, many = way == 2 ? 2 : 8;
    if (rank == size - 1) {
        MPI_Recv(room, many, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        printf("got %d %d %d from %d tag %d\n", room[0], room[2], room[3], status.MPI_SOURCE, status.MPI_TAG);
    }
    printf("%d of %d: %g %g, %ld, %d %d\n", rank, size, sum[0], most[1], word, part_rank, none == MPI_COMM_NULL);
    MPI_Comm_free(&part);
    MPI_Finalize();
    return part == MPI_COMM_NULL ? 0 : 9;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("c")
    (folder / "program.c").write_text(PROGRAM)
    command = ["cc", "-Wall", "-Werror", f"-I{sysconfig.get_path('data')}/include", "program.c", loading.LIBRARY]
    subprocess.run([*command, "-o", "program"], cwd=folder, check=True)
    return str(folder / "program")


def started(program: str, way: int, size: int = 3) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "run", "-n", str(size), "--", program, str(way)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_short_program(program: str) -> None:
    code, out, err = started(program, 0)
    assert code == 0, out + err
    lines = sorted(line.split("] ")[-1] for line in out.splitlines())
    assert lines == [
        "0 of 3: 6 1.5, 41, 0 1", "1 of 3: 6 1.5, 41, 1 0", "2 of 3: 6 1.5, 41, 0 0", "got 1 3 0 from 0 tag 5",
    ], out + err  # fmt: skip


def test_what_ends_a_program(program: str) -> None:
    """A function that is not carried out, by its name; a message without room for it; no launcher."""
    code, _, err = started(program, 1, 2)
    assert code == 1 and "hocket: MPI_Win_free: hocket does not carry this out" in err, err
    code, _, err = started(program, 2, 2)
    assert code == 1 and "ValueError: a message of 12 bytes came from rank 0, and there is room for 8" in err, err
    bare = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
    done = subprocess.run([program, "0"], capture_output=True, text=True, timeout=60, env=bare)
    assert done.returncode == 1 and "start the program by `hocket run" in done.stderr, done.stderr


def test_the_numbers_are_those_of_the_abi(tmp_path: Path) -> None:
    """Each constant that MPICH's header of the ABI has, too: the compiler compares them."""
    header = Path(sysconfig.get_path("data")) / "include" / "mpi_abi.h"
    text = header.read_text()
    known = {name.replace("MPIABI_", "MPI_"): value for name, value in loading.constants().items()}
    asserted = [
        f'_Static_assert((long){name} == {value}, "{name}");' for name, value in known.items() if f"{name} " in text
    ]
    assert len(asserted) > 250
    (tmp_path / "numbers.c").write_text("#include <mpi_abi.h>\n" + "\n".join(asserted))
    subprocess.run(["cc", "-fsyntax-only", f"-I{header.parent}", "numbers.c"], cwd=tmp_path, check=True)


def test_every_name_that_xla_asks_for_is_there() -> None:
    """641: 634 with MPIABI_ or MPIXABI_, and MPItrampoline's own seven.  Constants have the ABI's numbers."""
    library = ctypes.CDLL(loading.LIBRARY)
    own = [f"{what}_version_{part}" for what in ("mpiabi", "mpiwrapper") for part in ("major", "minor", "patch")]
    names = [*loading.table(), *own, "mpiwrapper_export_fortran_constants_"]
    assert len(names) == 641 and all(getattr(library, name) for name in names)
    for name, value in loading.constants().items():
        assert ctypes.c_long.in_dll(library, name).value == value, name
