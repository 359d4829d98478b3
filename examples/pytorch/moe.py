"""A mixture of experts on hocket: one expert on each rank, and every token travels to the expert that its gate chose.

    torchrun --nproc-per-node 3 examples/pytorch/moe.py

How many tokens go where is known only when the gate has spoken.  So the ranks first tell each other the counts (an
all_to_all of one number each), then exchange the tokens by an all_to_all_single with uneven splits, and send the
results back the same way; the gradients take the same way backwards.  Every rank also trains the gate and all experts
alone, on everybody's tokens, and compares:

    tokens from rank (row) to expert (column): [[1, 21, 42], [0, 23, 41], [0, 12, 52]]
    loss: 1.02 to 0.38 in 30 steps
    gate and experts: as in a run of one process (largest difference 1.1e-16)
"""

import torch
import torch.distributed as dist
from torch import nn

STEPS, TOKENS, WIDTH, RATE = 30, 64, 16, 1.0


class Exchange(torch.autograd.Function):
    """all_to_all_single that can be differentiated: the gradients go back where the rows came from."""

    @staticmethod
    def forward(ctx, rows, sends, recvs):
        ctx.sends, ctx.recvs = sends, recvs
        out = rows.new_empty(sum(recvs), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), recvs, sends)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, ctx.recvs, ctx.sends), None, None


def route(gate, tokens):
    """The expert of each token (top 1), and how much it counts."""
    return gate(tokens).softmax(1).max(1)


def mixture(gate, expert, tokens, size):
    """The layer: this rank's tokens through all ranks' experts.  Also how many went to each."""
    weight, chosen = route(gate, tokens)
    order = chosen.argsort(stable=True)
    sends = torch.bincount(chosen, minlength=size)
    recvs = torch.empty_like(sends)
    dist.all_to_all_single(recvs, sends)  # the counts
    there, back = (sends.tolist(), recvs.tolist()), (recvs.tolist(), sends.tolist())
    results = Exchange.apply(expert(Exchange.apply(tokens[order], *there)), *back)
    return weight[:, None] * torch.empty_like(results).index_copy(0, order, results), sends


def plain_mixture(gate, experts, tokens):
    """The same on one rank."""
    weight, chosen = route(gate, tokens)
    return weight[:, None] * torch.stack([expert(tokens) for expert in experts])[chosen, torch.arange(len(tokens))]


def new_model(size):
    """The gate, which every rank has, and all experts, of which a rank keeps its own."""
    torch.manual_seed(1)
    experts = [nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH)) for _ in range(size)]
    return nn.Linear(WIDTH, size), experts


def main():
    dist.init_process_group("hocket")
    torch.set_default_dtype(torch.float64)  # so that rounding sends no token to another expert than in the plain run
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    everybodys = torch.randn(size, TOKENS, WIDTH)
    wanted = everybodys.abs().roll(1, 2)  # what the layer shall learn
    count = wanted.numel()

    gate, experts = new_model(size)
    mine = [*gate.parameters(), *experts[rank].parameters()]
    optimizer, losses = torch.optim.SGD(mine, RATE), []
    for _ in range(STEPS):
        out, sends = mixture(gate, experts[rank], everybodys[rank], size)
        loss = (out - wanted[rank]).square().sum() / count
        optimizer.zero_grad()
        loss.backward()
        for parameter in gate.parameters():  # an expert has seen all its tokens, the gate only this rank's
            dist.all_reduce(parameter.grad)
        optimizer.step()
        dist.all_reduce(total := loss.detach())
        losses.append(total.item())
    table = [None] * size
    dist.all_gather_object(table, sends.tolist())

    plain_gate, plain_experts = new_model(size)
    plain = [*plain_gate.parameters(), *(each for expert in plain_experts for each in expert.parameters())]
    optimizer = torch.optim.SGD(plain, RATE)
    for _ in range(STEPS):
        out = plain_mixture(plain_gate, plain_experts, everybodys.view(-1, WIDTH))
        optimizer.zero_grad()
        ((out - wanted.view(-1, WIDTH)).square().sum() / count).backward()
        optimizer.step()
    same = [*plain_gate.parameters(), *plain_experts[rank].parameters()]
    difference = torch.stack([(a - b).detach().abs().max() for a, b in zip(mine, same, strict=True)]).max()
    dist.all_reduce(difference, dist.ReduceOp.MAX)
    if rank == 0:
        print(f"tokens from rank (row) to expert (column): {table}")
        print(f"loss: {losses[0]:.2f} to {losses[-1]:.2f} in {STEPS} steps")
        assert difference < 1e-9, f"the ranks did not learn what one process learns: {difference}"
        print(f"gate and experts: as in a run of one process (largest difference {difference:.1e})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
