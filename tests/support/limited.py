"""Refusals of a system to a process: system calls, memory, places to write.  Each is done to the caller, for good."""

from __future__ import annotations

import ctypes
import os
import resource

CALLS = {"memfd_create": 319, "process_vm_readv": 310, "eventfd2": 290}
"""Their numbers on x86-64."""
NO_NEW_PRIVILEGES, SET_SECCOMP, SET_DUMPABLE, FILTER = 38, 22, 4, 2
LOAD, JUMP_IF_EQUAL, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
NEW_MOUNTS, RECURSIVE_PRIVATE, REMOUNT_READ_ONLY, BIND = 0x20000, 0x44000, 0x1021, 0x1000
libc = ctypes.CDLL(None, use_errno=True)


class _Step(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.POINTER(_Step)))


def refuse(name: str, error: int) -> None:
    """Let this system call fail with `error`, as seccomp does in containers."""
    steps = [
        _Step(LOAD, 0, 0, 0), _Step(JUMP_IF_EQUAL, 0, 1, CALLS[name]), _Step(RETURN, 0, 0, ERRNO | error),
        _Step(RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    program = _Program(len(steps), (_Step * len(steps))(*steps))
    _done(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _done(libc.prctl(SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0))


def limit(which: int, most: int) -> None:
    """Set the limit `which`, a resource.RLIMIT_ number."""
    resource.setrlimit(which, (most, resource.getrlimit(which)[1]))


def addresses() -> int:
    """Bytes of addresses that this process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def read_only(*folders: str) -> None:
    """Nothing can be written there any more.  Needs root."""
    _own_mounts()
    for folder in folders:
        _done(libc.mount(folder.encode(), folder.encode(), None, BIND, None))
        _done(libc.mount(None, folder.encode(), None, REMOUNT_READ_ONLY, None))


def hide(folder: str, room: int = 0) -> None:
    """Put an empty folder in its place, on a disk of so many bytes; 0: a large one.  Needs root."""
    _own_mounts()
    _done(libc.mount(b"none", folder.encode(), b"tmpfs", 0, f"size={room}".encode() if room else None))


def drop_privileges(user: int = 65534) -> None:
    """Be another user, whose memory no other process reads.  Needs root."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    _done(libc.prctl(SET_DUMPABLE, 0, 0, 0, 0))


def _own_mounts() -> None:
    _done(libc.unshare(NEW_MOUNTS))
    _done(libc.mount(None, b"/", None, RECURSIVE_PRIVATE, None))


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
