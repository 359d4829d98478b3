"""Schedules are proven; the same walk tells which random numbers round a value, and who keeps residuals."""
