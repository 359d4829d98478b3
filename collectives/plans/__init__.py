"""A call becomes bytes: lowering, and the compiled plan."""
