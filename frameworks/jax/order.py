"""One ordered effect for all calls: they run in program order, one after the other, and none is dropped.

JAX passes a token from each call to the next, through jit, scan, while and cond, and from program to program.  So all
ranks make their calls in the same order, of whatever communicator, and no two calls wait at once for threads of XLA's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax._src import core, dispatch, effects
from jax.ffi import ffi_lowering
from jax.interpreters import mlir


class Ordered(effects.Effect):  # type: ignore[misc]  # JAX is not looked at
    """All instances are equal, so that they order each other."""

    def __repr__(self) -> str:
        return "hocket"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered)

    def __hash__(self) -> int:
        return hash(Ordered.__qualname__)


ORDERED = Ordered()
for kinds in (
    effects.ordered_effects, effects.lowerable_effects, effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects,
):  # fmt: skip
    kinds.add_type(Ordered)


def lowering(target: str, text: Callable[..., str]) -> Callable[..., Sequence[Any]]:
    """A rule that makes of a primitive a call of `target` with the attribute `call`, between two tokens."""

    def rule(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        token = ctx.tokens_in.get(ORDERED)
        ordered = ctx.replace(
            avals_in=(*ctx.avals_in, core.abstract_token), avals_out=(*ctx.avals_out, core.abstract_token)
        )
        call = ffi_lowering(target, has_side_effect=True)
        results: list[Any]
        *results, token = call(ordered, *operands, token, call=text(**params))
        ctx.set_tokens_out(mlir.TokenSet({ORDERED: token}))
        return results

    return rule


def forget() -> None:
    """After a failed call JAX fails every later one of the same order: begin a new order in this thread."""
    dispatch.runtime_tokens.current_tokens.pop(ORDERED, None)
    last = dispatch.runtime_tokens.output_runtime_tokens
    for device, token in list(last.items()):
        try:
            token.block_until_ready()
        except Exception:  # of that call, which would be raised again at the end of the process
            del last[device]
