"""hocket.torch.check: do all ranks hold the same model?"""

from __future__ import annotations

from pathlib import Path

from support import jobs, torch_ranks

CHECKED = """
start()
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
ddp = torch.nn.parallel.DistributedDataParallel(model)
ddp(torch.ones(2, 4) * rank).sum().backward()
say(same=hocket.torch.check(model[0]))
if rank == 1:
    with torch.no_grad():
        model[0].bias[2] += 1e-3
model[1].num_batches_tracked.fill_(7)
say(differs=hocket.torch.check(ddp))
gloo = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), process_group=dist.new_group(backend="gloo"))
for call in (lambda: hocket.torch.check(gloo, gloo.process_group), lambda: hocket.torch.compress(gloo, "int8")):
    try:
        call()
    except hocket.ArgumentError as error:
        say(**{str(error).split()[0]: str(error)})
"""


def test_a_model_that_differs_on_one_rank(tmp_path: Path) -> None:
    for end in torch_ranks.run(3, CHECKED, tmp_path):
        assert end.code == 0, end.err
        said = torch_ranks.facts(end)
        assert said["same"] == {} and said["differs"]["0.bias"] == [[0, 2], [1]]
        assert "0.weight" not in said["differs"] and "1.num_batches_tracked" not in said["differs"]
        assert said["check"].endswith("and this is one of 'gloo'")
        assert said["compress"].endswith("got DistributedDataParallel whose group is one of 'gloo'")


def test_without_a_group_all_ranks_are_those_of_init() -> None:
    source = """
        import torch, hocket, hocket.torch
        comm = hocket.init()
        model = torch.nn.Linear(2, 1)
        with torch.no_grad():
            [p.fill_(0.5 + (comm.rank == 1) * (p.ndim == 1)) for p in model.parameters()]
        print(hocket.torch.check(model))
    """
    assert jobs.run(2, source) == ["{'bias': [(0,), (1,)]}\n"] * 2


AUTO = """
start()
model = torch.nn.Linear(200, 300)
ddp = torch.nn.parallel.DistributedDataParallel(model)
found = hocket.torch.compress(ddp, "auto")
ddp(torch.randn(4, 200)).sum().backward()
say(method=found and found.method.name, differs=hocket.torch.check(model), report=found and found.report)
"""


def test_the_fastest_method_is_taken_by_all(tmp_path: Path) -> None:
    ends = torch_ranks.run(2, AUTO, tmp_path)
    said = [torch_ranks.facts(end) for end in ends]
    assert said[0] == said[1] and said[0]["differs"] == {}, ends
    assert "compress: " in ends[0].err and "also tried: " in ends[0].err and ends[1].err == ""
    assert said[0]["report"] is None if said[0]["method"] is None else f"compress: {said[0]['report']}" in ends[0].err
