"""Jobs whose ranks are started by hand, one command each, for what judges and what measures."""
