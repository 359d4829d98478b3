"""Training of ranks together: when gradients are sent, how often ranks talk, who takes part, which part a rank has.

Stands on hocket's public calls and on `hocket.compression`; knows NumPy, and no framework.  Each noun is one class, and
each method is a rule for it, in a file of its own.  Users import the names from here.

    flat.py         named arrays as one vector, and back
    optimizers.py   SGD, Adagrad and Adam of such vectors
    layered.py      LARS and LAMB, for large batches: a rate for each layer
    norm.py         norms of vectors that are cut, whose bits do not depend on the cut
    flags.py        which gradients each rank has, for frameworks that hand over all of a step
    logs.py         metrics of all ranks
    agreeing/       in which order: programs that declare nothing
    overlap/        when: gradients travel while the computation goes on
    crew/           who: members are lost, late and come, and all go on with one state
    outer/          how often: ranks train alone for a while, then average
    large/          which part: models that are cut, and optimizers in shards
    server/         where state lives: servers hold it, workers push and pull
"""

from hocket.training.crew.crew import Crew
from hocket.training.crew.machine import Change
from hocket.training.flat import Flat, digest
from hocket.training.large.experts.experts import Experts
from hocket.training.large.mesh.mesh import Mesh
from hocket.training.large.pipeline.pipeline import Pipeline
from hocket.training.large.sharding.crewed import CrewShards
from hocket.training.large.sharding.sharded import Sharded
from hocket.training.large.tensor import ColumnParallel, RowParallel
from hocket.training.layered import Lamb, Lars
from hocket.training.optimizers import SGD, Adagrad, Adam
from hocket.training.outer.diloco import DiLoCo
from hocket.training.outer.local_sgd import LocalSGD, PostLocalSGD
from hocket.training.outer.members import Again, Replica
from hocket.training.outer.noloco import NoLoCo
from hocket.training.outer.outer import Outer
from hocket.training.outer.rounds import Report
from hocket.training.outer.rules import Average, Momentum, Rule
from hocket.training.outer.sparseloco import SparseLoCo
from hocket.training.outer.streaming import StreamingDiLoCo
from hocket.training.overlap.delayed import Delayed
from hocket.training.overlap.gradient import Timing
from hocket.training.overlap.scheduler import Scheduler
from hocket.training.overlap.tuning import Setting, Tuned, tune
from hocket.training.server.optimizers import Optimizer
from hocket.training.server.serve import Server, serve
from hocket.training.server.tables import Range, Rows
from hocket.training.server.worker.cached import Cached
from hocket.training.server.worker.client import Client
from hocket.training.server.worker.downpour import Downpour
from hocket.training.server.worker.handles import Handle
from hocket.training.server.worker.layers import Layers
from hocket.training.server.worker.staging import Staged

__all__ = [
    "Adagrad", "Adam", "Again", "Average", "Cached", "Change", "Client", "ColumnParallel", "Crew", "CrewShards",
    "Delayed", "DiLoCo", "Downpour", "Experts", "Flat", "Handle", "Lamb", "Lars", "Layers", "LocalSGD", "Mesh",
    "Momentum", "NoLoCo", "Optimizer", "Outer", "Pipeline", "PostLocalSGD", "Range", "Replica", "Report",
    "RowParallel", "Rows", "Rule", "SGD", "Scheduler", "Server", "Setting", "Sharded", "SparseLoCo", "Staged",
    "StreamingDiLoCo", "Timing", "Tuned", "digest", "serve", "tune",
]  # fmt: skip
