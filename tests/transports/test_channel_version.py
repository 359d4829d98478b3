"""A capsule that is no channel of this version says what to do, wherever a transport's capsules are taken."""

from __future__ import annotations

import ctypes
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.bench.harness.limits import through
from hocket.collectives.engine.engine import Engine
from hocket.errors import TransportError
from hocket.transports.adapter import Adapter
from hocket.transports.reference import Pipe

MEMORY = ctypes.create_string_buffer(256)  # what the capsule points to, which nobody may look at
OLDER = ctypes.create_string_buffer(b"hocket.channel.2")


def capsule(name: Any) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(MEMORY), name, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [(capsule(OLDER), "returned 'hocket.channel.2' as its channel"), (capsule(None), "returned 'PyCapsule'"),
     (7, "returned 'int'")],
    ids=["older", "nameless", "no capsule"],
)  # fmt: skip
def test_another_version_is_refused(given: object, words: str) -> None:
    adapter = Adapter(Pipe())
    needs = f"{words}.* needs 'hocket.channel.3'.*build it again with this version's transports/channel.h"
    for send, recv in ((adapter.capsule, given), (given, adapter.capsule)):
        engine = Engine(0, 2, 1)
        with pytest.raises(TransportError, match=needs):
            engine.connect(1, send, recv, adapter)
        assert not engine.connected(1)
    with pytest.raises(TransportError, match=re.escape(words)):
        through(given, given, 1)


def test_a_change_of_the_interface_is_another_version() -> None:
    """A channel that was built before it would read past the end of what it is handed, or hand on too little."""
    header = (Path(hocket.__file__).parent / "transports/channel.h").read_text()
    structs = re.findall(r"struct \w+ \{.*?\n\}", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL), flags=re.DOTALL)
    version = re.findall(r'HK_CAPSULE "(.*)"', header)
    assert len(structs) == 4
    assert (*version, zlib.crc32("".join("".join(structs).split()).encode())) == ("hocket.channel.3", 3774619010)
