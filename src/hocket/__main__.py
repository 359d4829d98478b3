"""`python -m hocket`: the same as the command `hocket`."""

import sys

from hocket.collectives.cli import main

sys.exit(main())
