"""`hocket.training` for torch: a module's parameters, and what trains it.

    optimizer.py    DistributedOptimizer: the names and rules
    gradients.py    from parameters to the scheduler, and back
    parts.py        which steps may be taken module by module
    forward.py      modules wait each for its own parameters, and step them
    hooks.py        hooks that end with their owner, and are not copied with a model
    parameters.py   a module's parameters as outer loops take them; the communicator of a process group
    module.py       a module whose parameters servers hold
    served.py       an embedding whose rows servers hold
    tensor.py       linear layers that are cut among ranks
    pipeline.py     modules as stages of a pipeline
    lightning.py    a callback for Lightning's Trainer
    trainer.py      a callback for Hugging Face's Trainer
"""

from hocket.torch.training.parameters import Parameters, communicator, parameters

__all__ = ["Parameters", "communicator", "parameters"]
