"""Python imports this at its start, before the program, where this folder stands first in PYTHONPATH.

So the process that ranks are forked from is started with the program's own command line, and a rank that is forked
here goes on as Python does: with that program, its arguments and its tracebacks.
"""

import atexit
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

atexit.register(lambda: server.leave())  # before anything else registers its own, so it comes behind all of them

from hocket.tools.forking import server  # noqa: E402

server.forget_this_folder(os.path.dirname(os.path.abspath(__file__)))
if (theirs := PathFinder.find_spec("sitecustomize")) is not None and theirs.loader is not None:  # the system's own
    sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(theirs)
    theirs.loader.exec_module(module)
server.serve()  # returns in ranks
