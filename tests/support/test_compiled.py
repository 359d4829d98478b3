"""A program is compiled once, and anew when anything that the compiler reads differs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support import compiled as module
from support.compiled import compiled


def test_once_for_each_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE", tmp_path / "cache")

    def said(folder: Path, number: int, *flags: str) -> list[int]:
        """By the program of this folder, whose headers hold `number`, and how many there are."""
        (folder / "below").mkdir(parents=True, exist_ok=True)
        (folder / "below" / "number.h").write_text(f"#define NUMBER {number}\n")
        (folder / "by_way.h").write_text('#define BELOW <below/number.h>\n#include BELOW\n')
        (folder / "main.c").write_text('#include "by_way.h"\nint main(void) { return NUMBER + MORE; }\n')
        program = compiled(folder / "main", [folder / "main.c"], f"-I{folder}", *flags)
        return [subprocess.run([program]).returncode, len(list(module.CACHE.iterdir()))]

    assert said(tmp_path / "a", 3, "-DMORE=0") == [3, 1]
    assert said(tmp_path / "a", 4, "-DMORE=0") == [4, 2]
    assert said(tmp_path / "a", 3, "-DMORE=0") == [3, 2]
    assert said(tmp_path / "a", 3, "-DMORE=1") == [4, 3]
    assert said(tmp_path / "b", 3, "-DMORE=1") == [4, 3]
    with pytest.raises(AssertionError, match="NOTHING"):
        said(tmp_path / "b", 3, "-DMORE=NOTHING")
