"""`python -m hocket.xla`: the two variables, for a shell's `eval`; or why there are none."""

from __future__ import annotations

import os
import shlex
import sys

from hocket.xla import loading

if why := loading.refusal(os.environ):
    sys.exit(f"hocket cannot go under JAX's collectives: {why}")
for name, value in loading.variables(os.environ).items():
    print(f"export {name}={shlex.quote(value)}")
