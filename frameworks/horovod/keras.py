"""`import hocket.horovod.keras as hvd`: the names of hocket.horovod.tensorflow.keras."""

from hocket.horovod.tensorflow.keras import *  # noqa: F403
from hocket.horovod.tensorflow.keras import __all__ as __all__
