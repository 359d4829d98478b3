"""The extension needs one header of hocket's, transports/channel.h, which every installation of it has."""

import os
from importlib.util import find_spec

from setuptools import Extension, setup

HOCKET = os.path.dirname(find_spec("hocket").origin)
setup(ext_modules=[Extension("_hocket_fifos", ["_hocket_fifos.c"], include_dirs=[HOCKET])])
