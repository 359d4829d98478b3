"""The caller's wish: `Ask`, shapes, ops, codecs."""
