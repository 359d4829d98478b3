"""What is done to elements: tables of dtypes, ops and codecs, and the code that all processors share."""
