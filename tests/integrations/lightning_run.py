"""A constrained LightningModule of either package, and a run of it in two processes."""

import warnings
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nupi
from nupi.integrations.lightning import ConstrainedCallback, ConstrainedMixin

NUPI = partial(nupi.NuPI, ki=0.3, kp=1.0, nu=0.9)
LBFGS = {"lr": 0.5, "max_iter": 5, "line_search_fn": "strong_wolfe"}


def package(name):
    if name == "lightning":
        import lightning.pytorch as found
    else:
        import pytorch_lightning as found
    return found


def data(rows, seed=0):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > -0.67).float())


def loader(rows, size, seed=0):
    return DataLoader(data(rows, seed), batch_size=size)


def evaluate(model, batch):
    x, y = batch
    logits = model(x).squeeze(1)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
    return loss, {"rate": logits.sigmoid().mean() - 0.3}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def module(pl, kind="mixin", dual=NUPI, tolerance=0.02):
    """A module with the mixin; or one that has a Lagrangian only, for the callback; or with a loop of its own."""

    class Steps:
        def training_step(self, batch, _):
            return self.lagrangian(*evaluate(self.model, batch))

        def validation_step(self, batch, _):
            loss, violations = evaluate(self.model, batch)
            self.log("val_loss", loss)
            self.lagrangian(loss, violations=violations)

        test_step = validation_step

        def configure_optimizers(self):
            return torch.optim.Adam(self.model.parameters(), lr=1e-2)

    class WithMixin(Steps, ConstrainedMixin, pl.LightningModule):
        def __init__(self):
            super().__init__(constraints={"rate": nupi.Inequality()}, dual=dual, tolerance=tolerance)
            self.model = network()

    class Plain(Steps, pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()}, reduce="mean")
            self.model = network()
            self.callback = ConstrainedCallback(dual, tolerance=tolerance)

        def configure_callbacks(self):
            return [self.callback]

        @property
        def dual(self):
            return self.callback.dual

    class Manual(Plain):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, number):
            self.manual_backward(self.lagrangian(*evaluate(self.model, batch)) / 2)
            if number % 2:
                optimizer = self.optimizers()
                optimizer.step()
                optimizer.zero_grad()

    return {"mixin": WithMixin, "callback": Plain, "manual": Manual}[kind]()


def lbfgs_module(pl, *, own_loop):
    """A module whose optimizer evaluates its objective several times a step."""

    class Quick(type(module(pl, "callback"))):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.model.parameters(), **LBFGS)

    class OwnLoop(Quick):
        def training_step(self, batch, _):
            optimizer = self.optimizers()

            def closure():
                optimizer.zero_grad()
                value = self.lagrangian(*evaluate(self.model, batch))
                self.manual_backward(value)
                return value

            optimizer.step(closure)

    found = (OwnLoop if own_loop else Quick)()
    found.automatic_optimization = not own_loop
    return found


def trainer(pl, steps, **more):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    return pl.Trainer(max_steps=steps, **{**quiet, **more})


def state(found):
    return {
        **found.state_dict(),
        **{f"dual.{name}": value for name, value in found.dual.state_dict()["state"][0].items()},
    }


def one_rank(folder, rank, name):
    """One of two ranks: what it ends with goes to folder/rank0.pt or rank1.pt."""
    from torch.utils.data.distributed import DistributedSampler

    warnings.filterwarnings("ignore")
    pl = package(name)
    found = module(pl)
    rows = data(64)
    together = trainer(
        pl, 6, devices=2, strategy="ddp", accumulate_grad_batches=2, use_distributed_sampler=False
    )
    mine = DataLoader(rows, batch_size=16, sampler=DistributedSampler(rows, 2, rank, shuffle=False))
    new = data(96, seed=1)
    held = DataLoader(new, batch_size=48, sampler=DistributedSampler(new, 2, rank, shuffle=False))
    together.fit(found, mine)
    metrics = together.validate(found, held, verbose=False)[0]
    assert torch.distributed.get_world_size() == 2
    torch.save({"state": state(found), "metrics": metrics}, folder / f"rank{rank}.pt")
