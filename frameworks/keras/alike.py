"""Have all ranks the same model, optimizer and number of steps?

Two variables of one shape that ranks have in another order would be averaged with each other, without an error.  Keras
orders layers by their depth, so a layer more on one rank is enough.  Names that Keras made itself (dense_3) may differ
among ranks; order, and names that the program gave, may not.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import keras

import hocket
from hocket import Communicator
from hocket.errors import ArgumentError, MismatchError

WITHIN = "hocket.keras: comparing the models of all ranks"
DROPPED = frozenset({"seed", "shared_object_id", "build_config", "compile_config"})
"""Parts of a layer's config that may differ: seeds do, so that ranks drop other places."""
MOST = 4


def is_seed(variable: Any) -> bool:
    """The state of a SeedGenerator, which stays each rank's own."""
    return bool(variable.name == "seed_generator_state")


def compare(comm: Communicator, wrong: str, told: dict[str, Any]) -> None:
    """Raise the same error on all ranks if one has something `wrong`, or if what they tell differs.

    `told`: what `describe` made, and whatever else has to be the same.  Collective, two small allgathers.
    """
    digest = zlib.crc32(json.dumps(told, sort_keys=True, default=str).encode())
    rows = comm.share([wrong, digest], WITHIN)
    if any(text for text, _ in rows):
        said = "; ".join(f"rank {rank}: {text}" for rank, (text, _) in enumerate(rows) if text)
        raise ArgumentError(f"hocket cannot train this model: {said}")
    if len({number for _, number in rows}) == 1:
        return
    every = comm.share(json.loads(json.dumps(told, default=str)), WITHIN)
    found = [(rank, text) for rank, one in enumerate(every) if (text := difference(every[0], one, rank))]
    if found:
        raise MismatchError("ranks do not train the same: " + "; ".join(text for _, text in found[:MOST]))


def describe(model: Any, optimizer: Any) -> dict[str, Any]:
    """The parts of a model that have to be alike."""
    names = own_names(model)
    seen = [v for v in model.variables if not is_seed(v)]
    return {
        "versions": {"keras": keras.__version__, "hocket": hocket.__version__, "backend": keras.backend.backend()},
        "variables": [[renamed(v.path, names), list(v.shape), str(v.dtype), bool(v.trainable)] for v in seen],
        "layers": layers(model, names),
        "optimizer": settings(optimizer),
    }


def own_names(model: Any) -> dict[str, str]:
    """By the names that Keras made: those without its numbers, which count what the process has made before."""
    found = {}
    for layer in model._flatten_layers():
        base = keras.src.utils.naming.to_snake_case(type(layer).__name__)
        if re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name):
            found[layer.name] = base
    return found


def renamed(path: str, names: dict[str, str]) -> str:
    return "/".join(names.get(each, each) for each in path.split("/"))


def layers(model: Any, names: dict[str, str]) -> list[list[Any]]:
    """The layers: name and class, and a digest of the settings and of what it is applied to."""
    try:
        parts = model.get_config()["layers"]
    except Exception:  # a class of the user's need not have one; then names and classes in their order
        return [[f"{names.get(x.name, x.name)} ({type(x).__name__})", 0] for x in model._flatten_layers(False)]
    numbered: dict[str, str] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items() if key not in DROPPED}
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value]
        if isinstance(value, str) and value in names:
            return numbered.setdefault(value, f"{names[value]} {len(numbered)}")
        return value

    found = []
    for part in parts:
        name = str(part["config"].get("name", ""))
        text = json.dumps(plain(part), sort_keys=True, default=lambda each: type(each).__name__)
        found.append([f"{names.get(name, name)} ({part['class_name']})", zlib.crc32(text.encode())])
    return found


def settings(optimizer: Any) -> dict[str, Any]:
    """The settings of an optimizer that are numbers and texts."""
    config = optimizer.get_config()
    inner = getattr(optimizer, "inner_optimizer", None)
    found = {key: _shown(value) for key, value in config.items() if key != "name" and _plain(value)}
    found["class"] = type(optimizer).__name__
    return found if inner is None else {**found, **{f"inner {key}": each for key, each in settings(inner).items()}}


def _shown(value: Any) -> Any:
    """The number that the program gave, of one that has been a float32."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def difference(first: dict[str, Any], other: dict[str, Any], rank: int) -> str:
    """The first thing that rank `rank` has otherwise than rank 0, and what to do; ""."""

    def differ(what: str, a: Any, b: Any, remedy: str = "let all ranks have the same") -> str:
        return f"{what} is {a} on rank 0 and {b} on rank {rank}: {remedy}"

    for key, value in first["versions"].items():
        if other["versions"][key] != value:
            return differ(key, value, other["versions"][key])
    for i, (a, b) in enumerate(_pairs(first["variables"], other["variables"])):
        if a != b:
            return differ(f"variable {i}", _variable(a), _variable(b), "build the same model, in the same order")
    for i, (a, b) in enumerate(_pairs(first["layers"], other["layers"])):
        if a and b and a[0] == b[0] and a != b:
            return f"layer {i}, {a[0]}, has other settings or inputs on rank {rank} than on rank 0: build it alike"
        if a != b:
            return differ(f"layer {i}", _name(a), _name(b), "build the same model, in the same order")
    for key in first:
        a, b = first[key], other.get(key)
        if key in ("versions", "variables", "layers") or a is None or b is None or a == b:
            continue
        if isinstance(a, dict):
            name = next(each for each in {**a, **b} if a.get(each) != b.get(each))
            return differ(f"{name} of the {key}", repr(a.get(name)), repr(b.get(name)))
        remedy = "give all ranks as many batches (hocket.keras.shard does)" if key == "steps" else "give the same"
        return differ(key, repr(a), repr(b), remedy)
    return ""


def _pairs(a: list[Any], b: list[Any]) -> list[tuple[Any, Any]]:
    longer = max(len(a), len(b))
    return list(zip([*a, *[None] * (longer - len(a))], [*b, *[None] * (longer - len(b))], strict=True))


def _name(layer: Any) -> str:
    return "missing" if layer is None else str(layer[0])


def _variable(row: Any) -> str:
    if row is None:
        return "missing"
    path, shape, dtype, trainable = row
    return f"{path} {tuple(shape)} {dtype}{'' if trainable else ' (frozen)'}"
