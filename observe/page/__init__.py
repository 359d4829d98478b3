"""A report as one HTML page that needs nothing else: no network, no library, and readable without its script."""
