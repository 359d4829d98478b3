from typing import Any

from hocket.torch.calls.works import Work

def allreduce(self: Any, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work | None: ...
