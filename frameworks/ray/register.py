"""Make ray.util.collective know the name "hocket".  Ray keeps such names in each process."""

from __future__ import annotations

NAME = "HOCKET"


def register() -> None:
    """Register the backend in this process; a second time does nothing.

    Needed in each actor of a group, and in the driver for `create_collective_group`.  For all workers at once:
    `ray.init(runtime_env={"worker_process_setup_hook": "hocket.ray.register"})`.
    """
    # Imported here: with it comes torch, where it is installed, and `run` needs neither.
    from ray.util.collective import backend_registry

    from hocket.ray.group import HocketGroup

    if not backend_registry._global_registry.is_registered(NAME):
        backend_registry.register_collective_backend(NAME, HocketGroup)
