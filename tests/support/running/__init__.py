"""How the suite runs: what each test costs, in which order and where it runs, and which tests are quick."""
