"""python -m hocket.conformance package.module:name — one line for each law; 1 if one is broken."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

from hocket.conformance import GROUP_LAWS, LAWS, InProcess, NotOfferedError, ends


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hocket.conformance", description="Does a transport keep the laws?")
    parser.add_argument("transport", help="package.module:name, a transport class or a function pair()")
    parser.add_argument("--sides", help="package.module:name, a function sides(size), for the laws of several ranks")
    parser.add_argument("--law", action="append", help="only this law; may be repeated")
    parser.add_argument("--patience", type=float, default=ends.PATIENCE, help="seconds that a message may take")
    asked = parser.parse_args(argv)
    ends.PATIENCE = asked.patience
    sys.path.insert(0, os.getcwd())
    target = _load(asked.transport)
    sides = _load(asked.sides) if asked.sides else None
    known: dict[str, Any] = {law.__name__: law for law in (*LAWS, *GROUP_LAWS)}
    unknown = set(asked.law or ()) - set(known)
    if unknown:
        parser.error(f"no such law: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    broken = 0
    for name, law in known.items():
        if asked.law is None or name in asked.law:
            broken += not _kept(name, law, target, sides)
    return 1 if broken else 0


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    if not name:
        sys.exit(f"{path!r} is not package.module:name")
    return getattr(import_module(module), name)


def _kept(name: str, law: Any, target: Any, sides: Any) -> bool:
    """Try one law, say how it went."""
    began = time.perf_counter()
    try:
        if law in GROUP_LAWS and sides is not None:
            law(sides)
        elif isinstance(target, type):
            with InProcess(cast(Any, target)) as ranks:
                law(ranks.sides if law in GROUP_LAWS else ranks.pair)
        elif law in GROUP_LAWS:
            raise NotOfferedError("needs a class, or --sides")
        else:
            law(target)
    except NotOfferedError as why:
        print(f"-       {name}: {why}", flush=True)
        return True
    except Exception as error:
        print(f"BROKEN  {name}: {type(error).__name__}: {error}", flush=True)
        return False
    print(f"kept    {name} ({time.perf_counter() - began:.1f} s)", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
