"""Which file XLA is to load, and when it can: before jax is imported, by two variables of the environment.

XLA's loader reads them once, at `import jax`, and ends the process by exit(1) where a file or a name is missing.  So
nothing is set unless the installed jaxlib asks for no name that the library lacks.  Imports neither jax nor NumPy.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

FILE = "MPITRAMPOLINE_LIB"
CHOICE = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
TRIED = ("0.10.2", "0.12.0.1")
"""The jaxlibs whose names are known; others are looked into, which takes a quarter of a second or more."""
KNOWN = TRIED[-1]
LATE = (
    "JAX's own collectives cannot be hocket's in this process ({why}): start it by `hocket run`, or import hocket.jax "
    "before jax, or set the variables that `python -m hocket.xla` prints before Python starts; to stay with Gloo set "
    f"{CHOICE}=gloo or call jax.distributed.initialize"
)
_HERE = Path(__file__).parent


LIBRARY = str((_HERE / "libhocket_mpi.so.1").resolve())


def table() -> dict[str, str]:
    """The names that the library exports beside its versions; constants have their numbers in MPI 5.0's ABI."""
    lines = (_HERE / "names.txt").read_text().splitlines()
    items = [item for line in lines if not line.startswith("#") for item in line.split()]
    return dict(item.partition("=")[::2] for item in items)


def constants() -> dict[str, int]:
    """MPI's constants by those names."""
    return {name: int(value, 0) for name, value in table().items() if value}


def asked(file: Path) -> frozenset[str]:
    """The names that a jaxlib's file asks for: MPItrampoline keeps each as a C string.  It has 300 MB."""
    found = set()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as binary:
        for prefix in (b"\0MPIABI_", b"\0MPIXABI_"):
            at = binary.find(prefix)
            while at >= 0:
                if name := re.match(rb"\w+(?=\0)", binary[at + 1 : at + 100]):
                    found.add(name[0].decode())
                at = binary.find(prefix, at + 1)
    return frozenset(found)


def missing() -> str:
    """Why the installed jaxlib cannot load the library; "": it can."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or not spec.submodule_search_locations:
        return "jaxlib is not installed"
    from importlib.metadata import version as installed  # slow to import, and most ranks have no jaxlib

    version = installed("jaxlib")
    if not Path(LIBRARY).exists():
        return f"{LIBRARY} is not there: install hocket again"
    if version in TRIED:
        return ""
    file = Path(next(iter(spec.submodule_search_locations))) / "libjax_common.so"
    if not file.exists():
        return f"jaxlib {version} has no libjax_common.so; this hocket knows jaxlib 0.10.2 to {KNOWN}"
    wanted = asked(file)
    if not wanted:
        return f"jaxlib {version} has no MPI under its CPU collectives; this hocket knows jaxlib 0.10.2 to {KNOWN}"
    lacking = sorted(wanted - table().keys())
    if lacking:
        some = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        return f"jaxlib {version} asks for {some}, which this hocket lacks: it knows jaxlib up to {KNOWN}"
    return ""


def refusal(environ: Mapping[str, str]) -> str | None:
    """Why the variables are left as they are; None: they may be set."""
    choice = environ.get(CHOICE)
    if choice not in (None, "mpi"):
        return f"{CHOICE}={choice} is the program's choice"
    if environ.get(FILE) not in (None, LIBRARY):
        return f"{FILE} names another library"
    return missing() or None


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a process needs before it imports jax; {} where that does not go (`refusal`)."""
    return {} if refusal(environ) else {FILE: LIBRARY, CHOICE: "mpi"}


def prepare(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set them in this process, unless jax has been imported already."""
    if "jax" not in sys.modules and "jaxlib" not in sys.modules and environ.get(FILE) != LIBRARY:
        environ.update(variables(environ))


def loaded() -> bool:
    """Has jax been imported with the library?"""
    return os.environ.get(FILE) == LIBRARY and LIBRARY in Path("/proc/self/maps").read_text()
