"""In which order: ranks submit tensors by name, in any order, and rank 0 decides in which order all carry them out."""

from hocket.training.agreeing.errors import Errors
from hocket.training.agreeing.member import Perform, Submitter
from hocket.training.agreeing.negotiator import Negotiator
from hocket.training.agreeing.order import Order
from hocket.training.agreeing.pending import Pending
from hocket.training.agreeing.request import AUTO, Request, Spec
from hocket.training.agreeing.watcher import Watcher

__all__ = ["AUTO", "Errors", "Submitter", "Negotiator", "Order", "Spec", "Pending", "Perform", "Request", "Watcher"]
