"""Keras on JAX: `hocket.jax.allreduce` of the whole tree of gradients, inside the jitted training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hocket.jax
from hocket.errors import ArgumentError, Error

stale = True


def averages(averaging: Any, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    """A layer that a rank does not use has zeros there, which count as such."""
    found: list[Any] = hocket.jax.allreduce(grads, "avg", comm=averaging.comm)
    return found


def check_compress(compress: str | None) -> None:
    if compress is not None:
        raise ArgumentError(
            f"compress={compress!r} does not work on Keras's JAX backend: compiled programs of JAX hold no codec; use "
            "KERAS_BACKEND=tensorflow or torch, or leave it out"
        )


def problem(model: Any) -> str:
    return ""


def cause(error: BaseException) -> Error | None:
    return hocket.jax.cause(error)
