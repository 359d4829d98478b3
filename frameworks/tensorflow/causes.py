"""The fate of an exception inside a tf.py_function: TensorFlow keeps its text, and loses its class."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hocket.errors import Error

KEPT = 32
"""Errors whose Python object is kept."""
_errors: collections.deque[tuple[str, Error]] = collections.deque(maxlen=KEPT)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose errors `cause` finds again."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except Error as error:
            _errors.append((str(error), error.with_traceback(None)))
            raise

    return call


def cause(error: BaseException) -> Error | None:
    """hocket's error that made a program fail with `error`; None if it was none of hocket's.

    In a tf.function TensorFlow makes an UnknownError of every error, with its text.  The object has what the text has
    not: the class, `ranks`, `missing`, `calls`.  The last 32 are kept.

    try:
        step(x)
    except tf.errors.OpError as error:
        if isinstance(hocket.tensorflow.cause(error), hocket.PeerLostError): ...
    """
    if isinstance(error, Error) or not isinstance(error, tf.errors.OpError):
        return error if isinstance(error, Error) else None
    said = str(error)
    return next((each for text, each in reversed(_errors) if text in said), None)
