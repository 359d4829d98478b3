"""`hocket advise`: which mesh for a model that is larger than a rank, by memory, bytes and predicted step."""
