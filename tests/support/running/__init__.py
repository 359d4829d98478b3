"""The suite's run: the cost of each test, the order and the process in which it runs, and which tests are quick."""
