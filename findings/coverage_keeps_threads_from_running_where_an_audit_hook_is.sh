#!/usr/bin/env bash
# Guess: coverage makes a program of threads slower, and each thread runs all the same, as threading.Thread.start()
# returns for each without an error.
# Seen (coverage 7.17.5, CPython 3.11): each does, until the program adds an audit hook in Python, as tools that count
# processes or opened files do.  A thread installs its trace function before its own code; Python asks the hooks meanwhile,
# and another thread that gets the interpreter there and comes to the same place hears RuntimeError ("another trace function
# is being installed") and ends before its target has run.  start() and join() of it return as if nothing were wrong: only
# lines in stderr tell.  Without coverage, or without the hook, all run.  Threads take turns after a microsecond here, so
# that it shows in a second.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet coverage==7.17.5
cat > program.py <<'PY'
import sys
import threading

if "hook" in sys.argv:
    sys.addaudithook(lambda event, args: None)
sys.setswitchinterval(1e-6)
ran = []


def starts():
    for _ in range(200):
        inner = [threading.Thread(target=ran.append, args=(1,)) for _ in range(3)]
        for each in inner:
            each.start()
        for each in inner:
            each.join()


outer = [threading.Thread(target=starts) for _ in range(3)]
for each in outer:
    each.start()
for each in outer:
    each.join()
print("all ran" if len(ran) == 1800 else "some did not run")
PY
version=$(env/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || { echo "seen on CPython 3.11; this is $version"; exit 1; }
env/bin/python program.py hook 2> /dev/null | tee alone
env/bin/coverage run program.py 2> /dev/null | tee traced
env/bin/coverage run program.py hook 2> errors | tee both
grep -q "all ran" alone
grep -q "all ran" traced
grep -q "some did not run" both
grep -q "another trace function is being installed" errors
