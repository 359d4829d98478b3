"""The screen of `hocket top`: the same as `--once`, again and again.  Needs textual."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Footer, Header, Static

from hocket.tools.top import Jobs, as_text

EVERY = 1.0
"""Seconds between two looks."""


class Top(App[None]):
    """All jobs of this user on this host."""

    TITLE = "hocket top"
    BINDINGS = [("q", "quit", "quit"), ("space", "pause", "pause")]
    paused = False

    def __init__(self, there: Callable[[], Jobs]) -> None:
        super().__init__()
        self.there = there

    def compose(self) -> ComposeResult:
        yield Header(show_clock=True)
        with VerticalScroll():
            yield Static(id="jobs", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.refresh_jobs()
        self.set_interval(EVERY, self.refresh_jobs)

    def refresh_jobs(self) -> None:
        """Look again, unless it is paused."""
        if not self.paused:
            self.query_one("#jobs", Static).update(as_text(self.there()))

    def action_pause(self) -> None:
        """Hold the screen, or go on."""
        self.paused = not self.paused
        self.sub_title = "paused" if self.paused else ""


def show(there: Callable[[], Jobs]) -> int:
    """Run until the user ends it; `there`: what there is now."""
    Top(there).run()
    return 0
