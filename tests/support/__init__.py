"""The helpers of the tests: jobs of real ranks, what those ranks run, simulators, and stand-ins for what is not here.
"""
