"""hocket beside what it replaces in frameworks."""
