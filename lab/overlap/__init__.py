"""Does communication hide behind computation, and does the urgent overtake?"""
