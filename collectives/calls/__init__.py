"""What was asked: `Ask`, shapes, ops, codecs."""
