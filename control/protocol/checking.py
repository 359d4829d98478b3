"""JSON values, checked against type hints: what somebody else has sent becomes what our types say, or Malformed."""

from __future__ import annotations

import functools
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict


class Malformed(ValueError):
    """A value is not what its type says."""


hints = functools.lru_cache(maxsize=64)(get_type_hints)


def checked(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: a (named) tuple, from a list; a TypedDict, list, dict, Literal, union, int, str, bool, Any."""
    if kind is Any:
        return value
    origin, parts = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        return [checked(parts[0], each, where) for each in value]
    if origin is tuple and isinstance(value, (list, tuple)):
        return _plain_tuple(parts, value, where)
    if origin is dict and isinstance(value, dict):
        return {_key(parts[0], key, where): checked(parts[1], each, where) for key, each in value.items()}
    if origin is Literal and isinstance(value, str) and value in parts:
        return value
    if origin in (Union, UnionType):
        return _one_of(parts, value, where)
    if is_typeddict(kind) and isinstance(value, dict):
        return {key: checked(hints(kind).get(key, NoneType), each, f"{where}.{key}") for key, each in value.items()}
    if origin is None and hasattr(kind, "_fields") and isinstance(value, (list, tuple)):
        return _tuple(kind, value, where)
    if origin is None and type(value) is kind:
        return value
    raise Malformed(f"{where}: {str(value)[:40]!r} is not {getattr(kind, '__name__', kind)}")


def _tuple(kind: Any, values: Any, where: str) -> Any:
    fields = hints(kind)
    if not len(kind._fields) - len(kind._field_defaults) <= len(values) <= len(kind._fields):
        raise Malformed(f"{where}: {len(values)} fields")
    named = zip(kind._fields, values, strict=False)
    return kind(*(checked(fields[name], each, f"{where}.{name}") for name, each in named))


def _plain_tuple(parts: Any, values: Any, where: str) -> tuple[Any, ...]:
    kinds = [parts[0]] * len(values) if parts[-1] is ... else parts
    if len(kinds) != len(values):
        raise Malformed(f"{where}: {len(values)} values instead of {len(kinds)}")
    return tuple(checked(kind, each, where) for kind, each in zip(kinds, values, strict=True))


def _one_of(kinds: Any, value: Any, where: str) -> Any:
    for kind in kinds:
        try:
            return checked(kind, value, where)
        except Malformed as why:
            wrong = why
    raise wrong


def _key(kind: Any, key: str, where: str) -> Any:
    """JSON's keys are strings."""
    try:
        return kind(key)
    except ValueError:
        raise Malformed(f"{where}: the key {key[:40]!r} is not {kind.__name__}") from None
