"""What reductions do to elements: tables of dtypes and ops, and the code that all processors share."""
