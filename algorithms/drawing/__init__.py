"""Schedules are drawn."""
