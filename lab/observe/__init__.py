"""Does a trace tell the truth, and what does it cost?"""
