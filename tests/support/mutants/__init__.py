"""Does the suite notice when the code is wrong?  Reached lines, mutants of them, and trials: `make mutants`."""
