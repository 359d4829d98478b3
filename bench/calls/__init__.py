"""What calls that do several things at once cost, beside what they stand for."""
