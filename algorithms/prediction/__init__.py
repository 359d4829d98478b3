"""Schedules are priced and simulated."""
