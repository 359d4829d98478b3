"""The words of `hocket doctor` by pyverbs, here by a stand-in; tests/guest/test_pyverbs.py has the real one."""

from __future__ import annotations

import pathlib
import sys

import pytest

from hocket.tools.doctor import rdma

PYVERBS = """
from types import SimpleNamespace as Some
def get_device_list():
    return [Some(name=b"mlx5_0"), Some(name=b"gone")]
class Context:
    closed = 0
    def __init__(self, name):
        if name == "gone":
            raise OSError("Failed to open\\ndevice. Errno: 19")
    def query_device(self):
        return Some(device_cap_flags=1 << 24, fw_version="20.31.1014", vendor_id=0x2c9, max_qp=131072, max_mr=16777216,
                    phys_port_cnt=2)
    def query_port(self, number):
        return Some(state=4 if number == 1 else 1, link_layer=number, active_mtu=5)
    def query_gid(self, number, index):
        return Some(gid="fe80:0000:0000:0000:0000:0000:0000:000%d" % number)
    def close(self):
        Context.closed += 1
"""


@pytest.fixture
def installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [each for each in sys.modules if each.split(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "pyverbs" / "device.py"


def test_devices_and_their_ports(installed: pathlib.Path) -> None:
    installed.write_text(PYVERBS)
    assert list(rdma.section()) == [
        "by pyverbs: 2 devices",
        "mlx5_0: firmware 20.31.1014, vendor 0x2c9, 131072 queue pairs and 16777216 registrations at most, "
        "memory windows",
        "mlx5_0 port 1: active, InfiniBand, MTU 4096, GID fe80:0000:0000:0000:0000:0000:0000:0001",
        "mlx5_0 port 2: down, Ethernet, MTU 4096, GID fe80:0000:0000:0000:0000:0000:0000:0002",
        "gone: cannot be opened: Failed to open device. Errno: 19",
    ]
    assert sys.modules["pyverbs.device"].Context.closed == 1


def test_one_that_cannot_be_loaded_is_no_problem(installed: pathlib.Path) -> None:
    installed.write_text("raise ImportError('libibverbs.so.1: cannot open shared object file')")
    assert list(rdma.section()) == ["pyverbs: cannot be used: libibverbs.so.1: cannot open shared object file"]


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "find_spec", lambda name: None)
    assert [line.split(":")[1].split(";")[0] for line in rdma.section()] == [" not installed"]
