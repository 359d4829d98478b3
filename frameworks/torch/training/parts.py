"""Which steps may be taken in parts, module by module, so that nobody can tell them from a whole one."""

from __future__ import annotations

from numbers import Number
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from hocket.torch.training.forward import Forward

BEARING = frozenset(
    getattr(torch.optim, name) for name in (
        "ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
    )
)  # fmt: skip
"""Their steps look at one parameter at a time, and what they keep is kept for each parameter.  Others may add up over
all parameters, or count steps in their groups: nobody but their authors knows."""


def why_whole(optimizer: Any, kind: type, forward: Forward) -> str:
    """The reason why this optimizer's step is not taken in parts; "": it may be."""
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if kind not in BEARING:
        return f"{kind.__module__}.{kind.__qualname__} is not known to step each parameter by itself"
    if hooks or optimizers._global_optimizer_pre_hooks or optimizers._global_optimizer_post_hooks:
        return "hooks of the optimizer run once a step"
    if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
        return "a gradient scaler scales in the step"
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key != "params" and not _plain(value):
                return f"{key} is a {type(value).__name__}, which may change before the step ends"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "the step is differentiable"
    if modules._global_forward_pre_hooks:
        return "hooks of all modules run before hocket's"
    late = forward.overtaken
    return "" if late is None else f"a hook of module {late!r} runs before hocket's"


def _plain(value: Any) -> bool:
    """Is it a value that nobody can change in place?"""
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, (Number, str)) and not isinstance(value, torch.Tensor)
