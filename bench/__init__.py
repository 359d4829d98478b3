"""hocket under the stopwatch: `hocket bench`, `make compare`, and a file for each further question of theirs."""
