"""Run the few tests that failed beside others once more, alone: `python tests/support/again.py EXIT_CODE_OF_PYTEST`.

Four tests at a time share a machine's cores, and each starts several ranks.  Once in some ten thousand tests a time
limit is missed there that says nothing about the library.  More than three failures do say something, and so does what
fails twice.  A test that passes here only is named, as it may also hide a race: look at its first failure above.
"""

import json
import sys
from pathlib import Path

import pytest

MOST = 3
FAILED = Path(__file__).parents[2] / ".pytest_cache/v/cache/lastfailed"


def main(code: int) -> int:
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    names = sorted(json.loads(FAILED.read_text()))
    if len(names) > MOST:
        print(f"{len(names)} tests failed, and at most {MOST} are run again")
        return code
    again = pytest.main([*names, "--timeout=300"])
    if again == pytest.ExitCode.OK:
        print("passed alone, after a failure beside other tests (a time limit at load, or a race): " + ", ".join(names))
    return again


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
