"""DistributedDataParallel under Ray Train, with hocket instead of Gloo: one argument is new.

python ray_train.py
"""

import ray.train
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train():
    """On each worker."""
    rank, size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    torch.manual_seed(0)
    x = torch.randn(4096, 20)
    y = (x[:, :3].sum(1, keepdim=True) > 0).float()
    x, y = x[rank::size], y[rank::size]
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()  # DDP averages the gradients with hocket
        optimizer.step()
        ray.train.report({"epoch": epoch, "loss": loss.item()})
    if rank == 0:
        print(f"{size} workers on {torch.distributed.get_backend()}: the loss is {loss.item():.3f}", flush=True)


def main():
    trainer = TorchTrainer(
        train,
        torch_config=TorchConfig(backend="hocket"),  # instead of "gloo"
        scaling_config=ScalingConfig(num_workers=2),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
