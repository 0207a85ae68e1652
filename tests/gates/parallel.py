"""What runs on every rank of a process group: a gated model under DistributedDataParallel."""

import torch
import torch.distributed
from gates.transformers_tiny import WORDS, gpt2
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nupi
from nupi import gates
from nupi.gates.budgets import latency


def model():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    gates.attach(net, ["0", "3"], droprate_init=0.3, clamp=4.6)
    return net


def transformer():
    torch.manual_seed(0)
    net, _ = gpt2()
    gates.attach_transformer(net, droprate_init=0.3, clamp=4.6)
    return net


def trained_on_ranks(steps=4, build=model, backend=None):
    """Each rank has its own half of the batch and draws its own gates; the parameters stay the same."""
    net = build()
    rank = torch.distributed.get_rank()
    halves = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(1))
    data = (WORDS if build is transformer else halves)[rank : rank + 1].squeeze(0)
    data = data[None] if build is transformer else data
    budget = gates.budget(net, data, parameters=0.6)
    wrapped = DistributedDataParallel(net)
    used = torch.compile(wrapped, backend=backend) if backend else wrapped
    lagrangian = nupi.Lagrangian({"size": nupi.Equality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, init="bumpless")
    primal = torch.optim.Adam(net.parameters(), lr=0.3)
    torch.manual_seed(10 + rank)
    for _ in range(steps):
        violations = {"size": budget()}
        lagrangian.ascend(dual, violations)
        output = used(data)
        loss = (output.logits if build is transformer else output).square().mean()
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    small = gates.harvest(wrapped.module, data, repeats=1)
    return {
        "parameters": [each.detach().tolist() for each in net.parameters()],
        "multiplier": lagrangian.multipliers["size"].tolist(),
        "realised": budget.realised().item(),
        "harvested": small.after.parameters / small.before.parameters,
        "moved": all(
            not torch.equal(old, new)
            for old, new in zip(gates.gate_parameters(build()), gates.gate_parameters(net), strict=True)
        ),
    }


def latency_shares():
    """The share of the time that some gates leave, by tables that each rank would measure differently."""
    clock = float(1 + torch.distributed.get_rank())

    def seconds(module, inputs):
        output = module(*inputs)
        return 1e-6 * (1 + clock * output.numel() ** clock)

    net, old = model().eval(), latency._seconds
    latency._seconds = seconds
    try:
        budget = gates.budget(net, torch.randn(4, 6), latency=0.9)
    finally:
        latency._seconds = old
    with torch.no_grad():
        for phi in gates.gate_parameters(net):
            phi[::2] = -9.0
    shares = [budget.realised().item(), budget.expected().item()]
    budget.fit()
    return shares, [phi.tolist() for phi in gates.gate_parameters(net)]


def gate_gradients():
    """The gradient of the gates after one backward pass: of the loss, averaged over ranks, and of the size."""
    net = model().eval()  # the median gates: nothing is drawn
    with torch.no_grad():
        for phi in gates.gate_parameters(net):
            phi.copy_(torch.linspace(-1.0, 1.0, len(phi)))
    budget = gates.budget(net, torch.randn(4, 6), parameters=0.5)
    data = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(1))
    wrapped = DistributedDataParallel(net)
    loss = wrapped(data[torch.distributed.get_rank()]).square().mean()
    (loss + 0.7 * budget()).backward()
    found = [phi.grad.clone() for phi in gates.gate_parameters(net)]
    net.zero_grad()
    losses = torch.stack([net(half).square().mean() for half in data])
    (losses.mean() + 0.7 * budget()).backward()
    expected = [phi.grad.clone() for phi in gates.gate_parameters(net)]
    return [each.tolist() for each in found], [each.tolist() for each in expected]
