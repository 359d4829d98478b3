"""Sphinx's settings for the site of `make docs`: the pages as they are, and the reference from the docstrings.

The source is the repository, not this folder, so that the pages' links to each other and to the code are those that
GitHub follows too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hocket

ROOT = Path(__file__).parents[1]
MENU = {
    "Start": ["start"],
    "How to run": ["launching", "torch", "frameworks", "jax", "keras", "migrating", "mpi",
                   "mpi_abi", "gpu", "verbs", "testing"],
    "How to train over slow links": ["methods", "compression", "overlap", "less", "server", "large", "redistribute",
                                     "long-links"],
    "How to find what is wrong": ["hangs", "observing", "survive"],
    "Reference": ["api", "reference", "numbers", "commands", "codecs", "errors", "configuration", "tuning",
                  "performance", "security", "encryption"],
    "How it works": ["architecture", "transports"],
}
"""By what a reader needs; all pages of docs/."""
RESULTS = "bench/results/"
"""The histories of figures: the pages link there, and the menu does not."""

project = "hocket"
copyright = "the hocket authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
exclude_patterns = [each.name for each in ROOT.iterdir() if each.is_dir() and each.name not in ("bench", "docs")]
include_patterns = ["README.md", "CONTRIBUTING.md", "docs/*.md", f"{RESULTS}*.md"]
html_theme = "furo"
html_title = "hocket"
html_static_path = ["static"]
html_css_files = ["site.css"]
myst_heading_anchors = 4
suppress_warnings = ["myst.strikethrough"]

# Docstrings are written for whoever reads the code: a name in backticks is code, and an indented text is as it is.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
with hocket.local_world(1) as world:
    SHOWN = {*dir(next(iter(world))), *vars(hocket.Work)}


def menu(app: Any, page: str, source: list[str]) -> None:
    """README has its own table of the pages, and needs no list of them at its end but for the menu."""
    if page == root_doc:
        for caption, pages in MENU.items():
            listed = "\n".join(f"docs/{each}" for each in pages)
            listed += "\nCONTRIBUTING" if caption == "How it works" else ""
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"
    elif page.startswith(RESULTS):
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """In a docstring `*`, `_` and `|` mean nothing outside of backticks, and what is indented is a table."""
    found: list[str] = []
    for line in lines:
        if line.startswith("    ") and not (found and found[-1].startswith("    ")) and found[-2:-1] != ["::"]:
            found += ["::", ""]
        if not line.startswith(("    ", ">>>", "...")):
            parts = re.split(r"(`[^`]+`)", line)
            line = "".join(part if part.startswith("`") else re.sub(r"([*_|\\])", r"\\\1", part) for part in parts)
        found.append(line)
    lines[:] = found


def hidden(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Calls between the parts of the library are not for users."""
    return True if what == "class" and name not in SHOWN else None


def setup(app: Any) -> None:
    app.connect("source-read", menu)
    app.connect("autodoc-process-docstring", plain)
    app.connect("autodoc-skip-member", hidden)
