"""The bytes and costs of models that are larger than a rank: one program for each table of docs/large.md."""
