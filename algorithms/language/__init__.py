"""Schedules, the promises of each collective, and the catalogue."""
