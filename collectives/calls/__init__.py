"""What was asked: shapes, ops, options."""
