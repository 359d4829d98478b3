"""Reductions and codecs in CUDA, as source that is compiled when it is first used."""
