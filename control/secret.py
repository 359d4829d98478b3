"""The job's secret: where it is read, what is refused, and the key that is made of it.

One connection of an honest rank gives a stranger who answers it something to test guesses by, at leisure.  So what a
person thought of is stretched (scrypt, 16 MiB and some 50 ms for each guess, and once for each process), and what
everybody would guess is refused.  Knows nothing of connections.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import stat

SHORTEST = 16  # bytes
SYMBOLS = 6  # different bytes that a secret has at least; of 16 random hexadecimal digits 1 in 25,000 has fewer
MAKE_ONE = 'python -c "import secrets; print(secrets.token_hex(32))"'
COST = {"n": 1 << 14, "r": 8, "p": 1, "dklen": 32}  # 16 MiB
SALT = b"hocket: the secret of a job, version 1"  # all ranks know it before they have met


def read_text(text: str | bytes) -> bytes:
    """The key of a secret given as it is.  ValueError: why it is refused."""
    return key(os.fsencode(text))


def read_file(path: str) -> bytes:
    """The key of the secret in a file that nobody else can read, and that is no link.

    Or in a volume that Kubernetes or Docker mounts: its files are links to root's, and others in the container may read
    them, but it is mounted read-only, so nobody else can have put them there.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as why:
        raise ValueError(f"cannot be opened ({why.strerror})") from None
    with open(number, "rb") as file:
        status, link = os.fstat(number), os.lstat(path)
        own = status.st_uid == os.geteuid() and not status.st_mode & 0o077 and os.path.samestat(status, link)
        mounted = _from_root(status) and _from_root(link) and bool(os.fstatvfs(number).f_flag & os.ST_RDONLY)
        if not stat.S_ISREG(status.st_mode) or not (own or mounted):
            what = "is a link to a file that" if stat.S_ISLNK(link.st_mode) else "is a file that"
            raise ValueError(f"{what} has mode {stat.S_IMODE(status.st_mode):04o} and belongs to user {status.st_uid}")
        text = file.read(65536).strip()
    return key(text)


def _from_root(entry: os.stat_result) -> bool:
    """Root's, and (links, whose mode means nothing, apart) writable by nobody else."""
    return entry.st_uid == 0 and (stat.S_ISLNK(entry.st_mode) or not entry.st_mode & 0o022)


@functools.cache
def key(secret: bytes) -> bytes:
    """The key that is made of `secret`, and that connections prove.

    64 hexadecimal digits are a key already (`hocket run` draws them): there is nothing to stretch in 256 random bits,
    and ranks start 50 ms sooner.
    """
    refusal = why_trivial(secret)
    if refusal:
        raise ValueError(f"{refusal}; make one by {MAKE_ONE}")
    if re.fullmatch(rb"[0-9a-f]{64}", secret):
        return bytes.fromhex(secret.decode())
    return hashlib.scrypt(secret, salt=SALT, maxmem=64 << 20, **COST)


def why_trivial(secret: bytes) -> str:
    """Why a secret is too easily guessed; "" if it is not."""
    if len(secret) < SHORTEST:
        return f"is {len(secret)} bytes long"
    unit = _unit(secret)
    if len(unit) < SHORTEST:
        return f"repeats {len(unit)} byte{'s' * (len(unit) > 1)}"
    if len(set(unit)) < SYMBOLS:
        return f"consists of {len(set(unit))} different characters"
    if len({after - before for before, after in zip(unit, unit[1:], strict=False)}) <= 2:
        return "is a row of neighbours, such as 0123456789"
    if unit.isdigit() and len(unit) < 2 * SHORTEST:
        return f"consists of {len(unit)} digits only"
    return ""


def _unit(secret: bytes) -> bytes:
    """The shortest beginning whose repetition is the secret; the last one may be cut short, if six bytes of it repeat
    (fewer do by chance)."""
    for length in range(1, len(secret)):
        again = secret[length:]
        if secret.startswith(again) and (len(again) >= 6 or len(secret) % length == 0):
            return secret[:length]
    return secret


def forget(name: str) -> None:
    """Overwrite a variable where the kernel keeps the environment that this process was started with.

    Removing it from os.environ leaves it in /proc/PID/environ, which goes into bug reports and `ps e`.  (Root, and the
    same user's debuggers, read this process's memory anyway.)
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/environ", "rb") as file:
            entries = file.read()
        with open("/proc/self/stat", "rb") as file:
            start = int(file.read().rpartition(b")")[2].split()[47])  # env_start
        for match in re.finditer(rb"(?:^|\0)(" + os.fsencode(name) + rb"=)([^\0]+)", entries):
            ctypes.memset(start + match.start(2), ord("*"), len(match[2]))
