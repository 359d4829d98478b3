"""The key-value store of jax.distributed, as `hocket.init` asks it."""

from __future__ import annotations

from typing import Any

import jax


class JaxStore:
    """JAX's key-value store, under keys that begin with `prefix`."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client, self.prefix = client, prefix

    def set(self, key: str, value: str) -> None:
        self.client.key_value_set(self.prefix + key, value, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        try:
            return str(self.client.key_value_try_get(self.prefix + key))
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("NOT_FOUND"):
                return None
            raise

    def first(self, key: str, value: str) -> str:
        try:
            self.client.key_value_set(self.prefix + key, value)
            return value
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("ALREADY_EXISTS"):
                raise
        return str(self.client.key_value_try_get(self.prefix + key))

    def entries(self) -> dict[str, str]:
        """All that there is, by its keys."""
        found = self.client.key_value_dir_get(self.prefix)
        return {str(key).rpartition(self.prefix)[2]: str(value) for key, value in found}

    def clear(self) -> None:
        self.client.key_value_delete(self.prefix)
