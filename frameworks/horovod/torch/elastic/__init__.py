"""hvd.elastic: training that goes on without the ranks that were lost.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, epoch=0))

    state.py      TorchState
    sampler.py    ElasticSampler
"""

from hocket.horovod.elastic import run
from hocket.horovod.torch.elastic.sampler import ElasticSampler
from hocket.horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
