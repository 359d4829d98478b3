"""Numbers of ranks that run, for Prometheus and OpenTelemetry."""
