"""What a schedule is, what each collective promises, the catalogue."""
