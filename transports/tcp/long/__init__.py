"""Links with a long round trip: which congestion control, how many streams, and how several carry one channel."""
