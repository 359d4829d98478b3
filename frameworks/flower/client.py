"""`encoded(method)`: a mod that makes a ClientApp's replies to train messages short."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

from hocket.compression import decode
from hocket.errors import ArgumentError
from hocket.flower import updates

OWED = "hocket.flower.owed"
"""The key in the client's state: of each array, what the rounds before have lost."""


def encoded(method: updates.Method, feedback: bool = True) -> Callable[[Message, Context, Any], Message]:
    """The mod: `ClientApp(mods=[...])` or `@app.train(mods=[hocket.flower.encoded("int8")])`.

    `method`: what `hocket.compression.encode` takes: "int8", "int4", "fp8", "sign", "topk:0.01", ...  The server wraps
    its strategy in `Decoding` with the same one.

    The arrays of a reply (one ArrayRecord, with the keys, shapes and dtypes of the one that came) are replaced by their
    differences to those that came, encoded; float32 ones, others go as they are.  `feedback`: what the encoding loses
    is kept in the client's state, `Context.state`, and added to the next round's difference.  It is as long as the
    model.  Where an array of a reply is not finite, NaN goes in its place, and what is owed stays as it was.

    Raises ArgumentError for another method, and for a reply with other arrays.
    """
    said = updates.name(method)

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        base = dict(_record(message).items())  # the app may change what it was given
        reply: Message = call_next(message, context)
        if not reply.has_content():
            return reply
        key, made = next(iter(reply.content.array_records.items()), ("", None))
        if made is None or len(reply.content.array_records) > 1 or list(made) != list(base):
            raise ArgumentError("a reply must have one ArrayRecord, with the keys of the message's")
        owed = context.state.array_records.get(OWED, ArrayRecord()) if feedback else ArrayRecord()
        sent, kept = ArrayRecord(), ArrayRecord()
        for each, after in made.items():
            sent[each] = after
            if updates.is_one(after):
                salt = zlib.crc32(f"{said}|{each}|{context.node_id}|{message.metadata.message_id}".encode())
                update = _difference(after, base[each], owed.get(each))
                sent[each] = packed = updates.pack(update, method, salt)
                kept[each] = _lost(update, packed, method, owed.get(each))
        reply.content[key] = sent
        if feedback:
            context.state[OWED] = kept
        return reply

    return mod


def _record(message: Message) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ArgumentError(f"a train message has {len(records)} ArrayRecords: hocket.flower.encoded takes one")
    return records[0]


def _difference(after: Array, before: Array, owed: Array | None) -> updates.Floats:
    if after.shape != before.shape or after.dtype != before.dtype:
        raise ArgumentError(
            f"the message's array is {before.dtype}{before.shape}, the reply's {after.dtype}{after.shape}: they must "
            "be alike"
        )
    update: updates.Floats = after.numpy() - before.numpy()
    if owed is not None and tuple(owed.shape) == tuple(after.shape):
        update += owed.numpy()
    return update if np.isfinite(update).all() else np.full_like(update, np.nan)


def _lost(update: updates.Floats, packed: Array, method: updates.Method, owed: Array | None) -> Array:
    if not np.isfinite(update).all():
        return owed if owed is not None else Array(np.zeros_like(update))
    return Array(update - decode(packed.data, method, update.shape))
