"""`hocket run --elastic`: what ranks find in their environment, and how often one that died is started again."""

from __future__ import annotations

import argparse
import os

RESTARTS = 10
"""Processes that are started again, unless --restarts says how many, in jobs with --least or --most."""


def environment(options: argparse.Namespace, directory: str, newcomer: bool) -> dict[str, str]:
    """Beside what every rank finds.  `directory`: the job's own, where members note how newcomers come to them."""
    if options.join:
        return {"HOCKET_JOIN": options.join}
    if not options.elastic:
        return {}
    lobby = os.path.join(directory, "lobby")
    told = {"HOCKET_ELASTIC": "1", "HOCKET_LOBBY": lobby, "HOCKET_MOST": str(options.most)}
    return {**told, "HOCKET_JOIN": f"folder:{lobby}"} if newcomer else told


def secret(options: argparse.Namespace) -> str | None:
    """The user's, where processes of other commands belong to the job, too; None: one is drawn."""
    return os.environ.get("HOCKET_SECRET") if options.elastic or options.join else None


def restarts(options: argparse.Namespace) -> int:
    """The number of processes that died and are started again."""
    if options.restarts is not None:
        return int(options.restarts)
    return RESTARTS if options.least or options.most else 0
