"""The error of hocket's that ended a fit: TensorFlow and JAX raise their own, with its text."""

from __future__ import annotations

from hocket.errors import Error
from hocket.keras import backends


def cause(error: BaseException) -> Error | None:
    """hocket's error that made `fit`, or a step of one's own, fail with `error`; None if it was none of hocket's.

    On torch hocket's errors come as they are; TensorFlow makes an UnknownError of them, and JAX a JaxRuntimeError.  The
    object has what the text has not: the class, `ranks`, `missing`, `calls`.

    try:
        model.fit(x, y, callbacks=[hocket.keras.Average()])
    except Exception as error:
        if isinstance(hocket.keras.cause(error), hocket.PeerLostError): ...
    """
    found: Error | None = error if isinstance(error, Error) else backends.of_keras().cause(error)
    return found
