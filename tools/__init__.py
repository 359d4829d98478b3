"""The command line: `hocket run`, `bench`, `tune`, `doctor`, `simulate`."""
