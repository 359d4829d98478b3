"""A page of hocket's calls in torch's debug HTTP server (2.13 and later; it needs jinja2, tabulate and requests):

    from torch.distributed.debug import start_debug_server
    start_debug_server(handlers=hocket.torch.debug_handlers())      # on each rank; the page is /hocket

torch's own pages show what its C++ recorder has, which sees no group made in Python.  A rank that holds the GIL for
ever does not answer: `hocket top` sees it from outside.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from torch._C._distributed_c10d import _register_handler
from torch.distributed.debug import _debug_handlers

from hocket.observe.files.flight import dump
from hocket.torch.group.bootstrap import parent

ENDPOINT = "hocket_trace_json"
pages: Any = _debug_handlers  # private, and without types of what it imports itself


class Page(pages.FlightRecorderHandler):  # type: ignore[misc]
    """The ranks' calls, compared as `torchfrtrace` does, and what it compares."""

    def routes(self) -> list[Any]:
        return [pages.Route("/hocket", self._compared), pages.Route("/hocket_json", self._raw)]

    def nav_links(self) -> list[Any]:
        return [pages.NavLink("/hocket", "hocket"), pages.NavLink("/hocket_json", "(JSON)")]

    def dump(self) -> str:
        answers = zip(*self._fetched(), strict=True)
        return "\n".join(f"=== Rank {rank}: {address} ===\n{said.text}" for rank, (address, said) in enumerate(answers))

    def dump_filename(self) -> str:
        return "hocket"

    def _fetched(self) -> tuple[list[str], list[Any]]:
        addresses, answers = pages.fetch_all(ENDPOINT, timeout=self.fetch_timeout)
        return addresses, list(answers)

    def _compared(self, request: Any) -> Any:
        return self._render_tables(request.frontend, *self._fetched())

    def _raw(self, request: Any) -> Any:
        addresses, answers = self._fetched()
        return request.frontend.render_template("json_resp.html", title="hocket", addrs=addresses, resps=answers)


def debug_handlers() -> list[Any]:
    """torch's pages and hocket's, for `start_debug_server`.  Each rank calls it, as each answers for itself."""
    _serve()
    return [*pages.default_handlers(), Page()]


@functools.cache
def _serve() -> None:
    _register_handler(ENDPOINT, _answer)


def _answer(request: Any, response: Any) -> None:
    comm = parent()
    if comm is None:
        response.set_status(404)
        response.set_content("the default group is not hocket's", "text/plain")
    else:
        response.set_content(json.dumps(dump(comm.recorder().recorded())), "application/json")
        response.set_status(200)
