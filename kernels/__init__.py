"""The arithmetic of elements: tables of dtypes, ops and codecs, a digest, and the code that all processors share."""
