"""Hosts that are network namespaces, with cables between them: for tests, benchmarks and `hocket run --hosts`."""
