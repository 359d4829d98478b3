"""Schedules are proven."""
