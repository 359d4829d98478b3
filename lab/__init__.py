"""Programs that answer one question each, from a checkout: `python -m hocket.lab.NAME`.  No wheel has them."""
