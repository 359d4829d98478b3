"""Algorithms as data: pure functions from (rank, size, root) to a schedule.  They never see a byte.

To add one, write a file with an `@algorithm` function and import it below; the proof comes with it.
"""

from hocket.algorithms import bruck as bruck
from hocket.algorithms import chain as chain
from hocket.algorithms import direct as direct
from hocket.algorithms import double_tree as double_tree
from hocket.algorithms import pairwise as pairwise
from hocket.algorithms import pat as pat
from hocket.algorithms import recursive as recursive
from hocket.algorithms import ring as ring
from hocket.algorithms import scan as scan
from hocket.algorithms import scatter_allgather as scatter_allgather
from hocket.algorithms import tree as tree
from hocket.algorithms.drawing.draw import Drawing, show
from hocket.algorithms.hierarchical import hierarchical
from hocket.algorithms.language.contract import CONTRACTS, Contract
from hocket.algorithms.language.registry import Algorithm, algorithm, get, names, register, vouch
from hocket.algorithms.language.schedule import Action, Chunks, Copy, Recv, Schedule, Send, Step, ids
from hocket.algorithms.prediction.cost import cost
from hocket.algorithms.prediction.simulate import Prediction, simulate
from hocket.algorithms.prediction.topology import Link, Topology, topology
from hocket.algorithms.proof.verify import verify, verify_steps

__all__ = [
    "CONTRACTS",
    "Algorithm",
    "Chunks",
    "Contract",
    "Copy",
    "Drawing",
    "Link",
    "Action",
    "Prediction",
    "Recv",
    "Schedule",
    "Send",
    "Step",
    "Topology",
    "algorithm",
    "cost",
    "get",
    "hierarchical",
    "ids",
    "names",
    "register",
    "show",
    "simulate",
    "topology",
    "verify",
    "verify_steps",
]

vouch(*(get(collective, name) for collective in CONTRACTS for name in names(collective)))
