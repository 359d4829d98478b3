"""Elastic jobs whose members are killed, stopped, cut off and replaced: who must go on, with which bits."""
