"""Process managers as stores: ranks of several hosts find each other by what started them, PMI-1 or PMIx."""
