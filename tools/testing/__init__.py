"""Tests on ranks: the plug-in for pytest, and pools of ranks that run one function after the other."""
