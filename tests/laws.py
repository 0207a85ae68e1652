"""The laws of a dual optimizer, and the table of optimizers that must keep them.

A law takes a case and raises if the case breaks it. Torch's own SGD and Adam stand in the table as controls:
a law they break for no good reason would be a wrong law.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import oracles
import torch

import nupi
from nupi.constraints import Bounds
from nupi.optim.base import Work
from nupi.rule import FORMS, INITS

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 9


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[..., torch.optim.Optimizer]
    options: dict[str, Any]
    oracle: Callable[..., list[float]]  # errors, theta_0, and lr=factors of a schedule, low= and high= bounds
    sparse: bool = True
    ours: bool = True
    other: dict[str, Any] = field(default_factory=dict)  # options for a second param group

    def build(self, params, **more):
        return self.make(params, **{**self.options, **more})

    def __str__(self):
        return self.name


def _nupi(name, init="zero", form="velocity", **gains):
    gains = {"ki": 0.1, "kp": 0.7, "nu": 0.3, **gains}
    numbers = {
        key: float(value.flatten()[0]) if torch.is_tensor(value) else value for key, value in gains.items()
    }
    return Case(
        name,
        nupi.NuPI,
        {**gains, "init": init, "form": form},
        lambda *args, **more: oracles.nupi(*args, init=init, form=form, **numbers, **more),
        other={"ki": 0.4, "kp": 0.05},
    )


def _momentum(name, **values):
    constants = (values["lr"], values["beta"], values["gamma"])
    return Case(
        name,
        nupi.UnifiedMomentum,
        values,
        lambda *args, **more: oracles.momentum(*args, *constants, **more),
        other={"lr": 0.4},
    )


def _pid(name, **values):
    gains = {"ki": 0.1, "kp": 0.7, "kd": 0.4, "nu": 0.3, "one_sided": True, **values}
    return Case(
        name, nupi.PID, gains, lambda *args, **more: oracles.pid(*args, **gains, **more), other={"kd": 0.1}
    )


def _self_tuned(name, **values):
    options = {"steps": 20.0, "scale": 1.0, **values}
    return Case(
        name,
        nupi.SelfTuned,
        options,
        lambda *args, **more: oracles.self_tuned(*args, **options, **more),
        other={"steps": 60.0},
    )


CASES = [
    _self_tuned("SelfTuned"),
    _self_tuned("SelfTuned-slow", steps=200.0, scale=0.5),
    *(_nupi(f"NuPI-{init}-{form}", init, form) for init in INITS for form in FORMS),
    _nupi("NuPI-gradient-ascent", kp=0.0),
    _nupi("NuPI-nu-0", nu=0.0),
    _nupi("NuPI-nu-negative-kp-negative", nu=-0.6, kp=-0.2),
    _nupi(
        "NuPI-tensor-gains",
        "bumpless",
        kp=torch.tensor(0.7, dtype=torch.float64),
        nu=torch.tensor([0.3]).double(),
    ),
    _nupi("NuPI-tensor-gains-positional", "error", "positional", ki=torch.tensor([0.1], dtype=torch.float64)),
    _momentum("Polyak", lr=0.1, beta=0.5, gamma=0.0),
    _momentum("Polyak-negative", lr=0.1, beta=-0.5, gamma=0.0),
    _momentum("Nesterov", lr=0.1, beta=0.5, gamma=1.0),
    _momentum("no-momentum", lr=0.1, beta=0.0, gamma=0.0),
    _pid("PID"),
    _pid("PID-two-sided", one_sided=False, nu=0.0),
    Case(
        "torch-SGD",
        torch.optim.SGD,
        {"lr": 0.1, "maximize": True},
        lambda *args, **lr: oracles.momentum(*args, 0.1, 0.0, 0.0, **lr),
        ours=False,
        other={"lr": 0.4},
    ),
    Case(
        "torch-Adam",
        torch.optim.Adam,
        {"lr": 0.1, "maximize": True},
        lambda *args, **lr: oracles.adam(*args, 0.1, **lr),
        sparse=False,
        ours=False,
        other={"lr": 0.4},
    ),
]


def draw(seed: int, *shape: int, steps: int = STEPS, dtype=torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(steps)]


def run(optimizer, params, errors_per_step) -> None:
    """Step once per tuple of errors; None leaves that parameter without a gradient."""
    for errors in errors_per_step:
        for param, error in zip(params, errors, strict=True):
            param.grad = error
        optimizer.step()


def sparse(error: torch.Tensor, rows: list[int]) -> torch.Tensor:
    index = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(index, error[rows], error.shape, check_invariants=True)


def same(left, right) -> None:
    assert torch.equal(left, right), (left, right)


def follows_its_formula(case: Case) -> None:
    errors, theta = draw(0, 5), draw(1, 5, steps=1)[0]
    param = theta.clone()
    optimizer = case.build([param])
    path = []
    for error in errors:
        run(optimizer, [param], [(error,)])
        path.append(param.clone())
    for i in range(5):
        expected = torch.tensor(
            case.oracle([float(e[i]) for e in errors], float(theta[i])), dtype=torch.float64
        )
        torch.testing.assert_close(torch.stack(path)[:, i], expected, rtol=1e-12, atol=1e-12)


BOUNDS = [Bounds(0.0, None), Bounds(0.0, 0.6), Bounds(None, 0.3), Bounds(0.0, 0.6, restart=True)]


def keeps_within_bounds_by_its_formula(case: Case) -> None:
    """Whole parameters one by one, many at once, and row by row, each against the oracle with a projection."""
    errors = draw(11, 5, steps=25)
    for bounds in BOUNDS:
        low = -math.inf if bounds.lower is None else bounds.lower
        high = math.inf if bounds.upper is None else bounds.upper
        singles, many, rows = ([torch.zeros(5, dtype=torch.float64) for _ in range(2)] for _ in range(3))
        optimizers = [
            case.build(params, foreach=foreach)
            for params, foreach in ((singles, False), (many, True), (rows, None))
        ]
        order = torch.tensor([3, 0, 4, 1, 2])
        for e in errors:
            for params, optimizer in zip((singles, many, rows), optimizers, strict=True):
                group = optimizer.param_groups[0]
                some = (order, e[order]) if params is rows else (None, e)
                optimizer.apply([Work(group, param, some[1], bounds, some[0]) for param in params])
                assert all(bool(((p >= low) & (p <= high)).all()) for p in params)
        for left, right, third in zip(singles, many, rows, strict=True):
            same(left, right)
            same(left, third)
        if bounds.restart:
            assert not singles[0][errors[-1] < 0].any()
            continue
        for i in range(5):
            expected = case.oracle([float(e[i]) for e in errors], 0.0, low=low, high=high)[-1]
            torch.testing.assert_close(float(singles[0][i]), expected, rtol=1e-10, atol=1e-12)


def foreach_is_single(case: Case) -> None:
    shapes, results = ((4,), (2, 3), (1,), ()), []
    for foreach in (False, True, None):
        params = [torch.zeros(shape, dtype=torch.float32) for shape in shapes]
        try:
            optimizer = case.build(params, foreach=foreach)
        except ValueError:  # gains of shape (1,) do not fit a parameter of shape ()
            params = params[:-1]
            optimizer = case.build(params, foreach=foreach)
        errors = [draw(i, *p.shape, dtype=torch.float32) for i, p in enumerate(params)]
        run(optimizer, params, zip(*errors, strict=True))
        results.append(params)
    for single, many, default in zip(*results, strict=True):
        same(single, many)
        same(single, default)


def sparse_is_dense(case: Case) -> None:
    for shape in ((6,), (6, 2)):
        dense, seen = torch.ones(shape), torch.ones(shape)
        errors = draw(3, *shape, dtype=torch.float32)
        run(case.build([dense]), [dense], [(e,) for e in errors])
        run(case.build([seen]), [seen], [(sparse(e, [4, 2, 0, 1, 5, 3]),) for e in errors])
        same(dense, seen) if case.ours else torch.testing.assert_close(dense, seen)


def each_row_has_its_own_clock(case: Case) -> None:
    """A row seen for the first time at step 3 takes its first step then, whatever its neighbours have done."""
    param = torch.full((4,), 0.5, dtype=torch.float64)
    optimizer = case.build([param])
    visits = [[0], [0, 2], [2, 0, 3], [3], [0, 3], None, [1, 2], None]
    heard: list[list[float]] = [[], [], [], []]
    for error, rows in zip(draw(4, 4), visits, strict=False):
        run(optimizer, [param], [(error if rows is None else sparse(error, rows),)])
        for i in range(4) if rows is None else rows:
            heard[i].append(float(error[i]))
    for i, errors in enumerate(heard):
        torch.testing.assert_close(float(param[i]), case.oracle(errors, 0.5)[-1], rtol=1e-12, atol=1e-12)


def repeated_indices_add_up(case: Case) -> None:
    once, twice = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    first, second = case.build([once]), case.build([twice])
    for value in (1.0, -0.25, 0.5):
        whole = torch.sparse_coo_tensor([[1]], [value], (3,), dtype=torch.float64, check_invariants=True)
        halves = torch.sparse_coo_tensor(
            [[1, 1]], [value / 2] * 2, (3,), dtype=torch.float64, check_invariants=True
        )
        run(first, [once], [(whole,)])
        run(second, [twice], [(halves,)])
    same(once, twice)
    assert once[1] != 0
    assert once[0] == once[2] == 0


def minimizing_mirrors_maximizing(case: Case) -> None:
    up, down = torch.zeros(4), torch.zeros(4)
    errors = draw(5, 4, dtype=torch.float32)
    run(case.build([up]), [up], [(e,) for e in errors])
    run(case.build([down], maximize=False), [down], [(-e,) for e in errors])
    same(up, down)


def narrow_parameters_have_wide_state(case: Case) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        param = torch.full((3,), 4.0, dtype=dtype)
        optimizer = case.build([param])
        errors = draw(6, 3, dtype=dtype)
        run(optimizer, [param], [(e,) for e in errors])
        assert param.dtype == dtype
        for value in optimizer.state[param].values():
            assert value.dtype == torch.promote_types(dtype, torch.float32)
        for i in range(3):
            expected = case.oracle([float(e[i]) for e in errors], 4.0)[-1]
            # One rounding of a parameter near 4 per step, and no other: half an ulp there is 2 eps.
            assert abs(float(param[i]) - expected) <= STEPS * 4 * torch.finfo(dtype).eps


def checkpoints_go_on_bit_for_bit(case: Case) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for stop in (0, 1, 4):
            errors = draw(7, 4, dtype=dtype)
            param = torch.zeros(4, dtype=dtype)
            optimizer = case.build([param])
            run(optimizer, [param], [(e,) for e in errors[:stop]])
            file = io.BytesIO()
            torch.save({"param": param, "optimizer": optimizer.state_dict()}, file)
            run(optimizer, [param], [(e,) for e in errors[stop:]])
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            again = saved["param"].clone()
            fresh = case.build([again])
            fresh.load_state_dict(saved["optimizer"])
            run(fresh, [again], [(e,) for e in errors[stop:]])
            if case.ours or dtype == torch.float32:  # torch's own narrow their state on loading
                same(param, again)


def copies_go_on_alone(case: Case) -> None:
    errors = draw(8, 4)
    param = torch.zeros(4, dtype=torch.float64)
    optimizer = case.build([param])
    run(optimizer, [param], [(e,) for e in errors[:3]])
    param.grad = None
    twins = [copy.deepcopy((param, optimizer)), pickle.loads(pickle.dumps((param, optimizer)))]
    run(optimizer, [param], [(e,) for e in errors[3:]])
    for twin, its_optimizer in twins:
        assert its_optimizer.param_groups[0]["params"][0] is twin
        run(its_optimizer, [twin], [(e,) for e in errors[3:]])
        same(param, twin)


def groups_have_gains_of_their_own(case: Case) -> None:
    errors = draw(9, 3)
    together = [torch.zeros(3, dtype=torch.float64) for _ in range(2)]
    apart = [torch.zeros(3, dtype=torch.float64) for _ in range(2)]
    optimizer = case.build([{"params": together[:1]}, {"params": together[1:], **case.other}])
    run(optimizer, together, [(e, e) for e in errors])
    run(case.build(apart[:1]), apart[:1], [(e,) for e in errors])
    run(case.build(apart[1:], **case.other), apart[1:], [(e,) for e in errors])
    for left, right in zip(together, apart, strict=True):
        same(left, right)
    assert not torch.equal(*together)


def schedulers_scale_the_step(case: Case) -> None:
    errors = draw(10, 1)
    param = torch.zeros(1, dtype=torch.float64)
    optimizer = case.build([param])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 / (1 + epoch))
    for error in errors:
        run(optimizer, [param], [(error,)])
        scheduler.step()
    expected = case.oracle([float(e) for e in errors], 0.0, lr=[1.0 / (1 + t) for t in range(STEPS)])[-1]
    torch.testing.assert_close(float(param), expected, rtol=1e-12, atol=1e-12)


def never_looks_at_a_value(case: Case) -> None:
    """On the meta device there are no values to look at: a host sync or a branch on one raises."""
    optimizer = case.build([torch.zeros(4), torch.zeros(4)])
    away = [torch.zeros(4, device="meta") for _ in range(2)]
    group = optimizer.param_groups[0]
    group.update({key: value.to("meta") for key, value in group.items() if torch.is_tensor(value)})
    group["params"] = away
    run(optimizer, away, [(torch.zeros(4, device="meta"),) * 2] * 3)


def compiles_to_one_graph(case: Case) -> None:
    torch._dynamo.reset()
    shapes = ((4,), (2, 3))
    eager, compiled = ([torch.zeros(shape) for shape in shapes] for _ in range(2))
    plain, fast = case.build(eager), case.build(compiled)
    step = torch.compile(fast.step, fullgraph=True, backend="eager")
    for errors in zip(*(draw(i, *shape, dtype=torch.float32) for i, shape in enumerate(shapes)), strict=True):
        for params in (eager, compiled):
            for param, error in zip(params, errors, strict=True):
                param.grad = error.clone()
        plain.step()
        step()
    for left, right in zip(eager, compiled, strict=True):
        torch.testing.assert_close(
            left, right
        )  # a compiler may fuse, and round once where eager rounds twice


def always(_: Case) -> bool:
    return True


LAWS: dict[Callable[[Case], None], Callable[[Case], bool]] = {  # each with the cases that it is a law for
    follows_its_formula: always,
    keeps_within_bounds_by_its_formula: lambda case: case.ours,
    foreach_is_single: always,
    sparse_is_dense: lambda case: case.sparse,
    each_row_has_its_own_clock: lambda case: case.sparse,
    repeated_indices_add_up: lambda case: case.sparse,
    minimizing_mirrors_maximizing: always,
    narrow_parameters_have_wide_state: lambda case: case.ours,
    checkpoints_go_on_bit_for_bit: always,
    copies_go_on_alone: always,
    groups_have_gains_of_their_own: always,
    schedulers_scale_the_step: always,
    never_looks_at_a_value: lambda case: case.ours,
    compiles_to_one_graph: lambda case: case.ours,
}
