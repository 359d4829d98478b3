"""A store in a folder that all ranks see: of one host, or of a file system that hosts share."""

from __future__ import annotations

import contextlib
import os
import secrets

from hocket.control.addresses import private_directory


class FolderStore:
    """`set`, `get` and `first` of texts, as files in `path`, a folder that only this user may enter; made if need be.

    A value is written whole or not at all.  `first` needs a file system with hard links.  Files stay until they are
    removed: one folder for each job.
    """

    trusted = True
    """Only this user can write here, and owns these processes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        private_directory(self.path)

    def set(self, key: str, value: str) -> None:
        os.rename(self._written(value), self._at(key))

    def get(self, key: str) -> str | None:
        try:
            with open(self._at(key), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def first(self, key: str, value: str) -> str:
        name = self._written(value)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(name, self._at(key))
        finally:
            os.unlink(name)
        kept = self.get(key)
        assert kept is not None
        return kept

    def _at(self, key: str) -> str:
        return os.path.join(self.path, key.replace("%", "%25").replace("/", "%2F"))

    def _written(self, value: str) -> str:
        name = os.path.join(self.path, f"~{secrets.token_hex(8)}")
        with open(name, "w", encoding="utf-8") as file:
            file.write(value)
        return name
