"""Any order of calls on the public face, against a model of what the library promises in plain Python numbers.

The model keeps, for every single multiplier, the few numbers of the nuPI rule. Between good steps all kinds of things
go wrong: hooks that raise, inputs that do not fit, numbers that are not finite. None of them may leave a trace.
"""

import copy
import io
import math

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from interrupting import FailAt, Injected

import nupi

SIZE = 3
numbers = st.floats(-2, 2, allow_subnormal=False, width=32)
three = st.lists(numbers, min_size=SIZE, max_size=SIZE)
rows = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=5)


class Multiplier:
    """One multiplier under the conditional form from the bumpless start."""

    def __init__(self, low):
        self.theta, self.u, self.xi, self.low = 0.0, 0.0, None, low

    def step(self, e, ki, kp, nu, idle):
        if idle:
            self.theta = self.u = max(self.theta + ki * e, self.low)
            return
        before = e if self.xi is None else self.xi
        self.xi = nu * before + (1 - nu) * e
        without = self.u + kp * (self.xi - before)
        self.u = without + ki * e
        if self.u < self.low and e < 0:
            self.u = min(without, self.low)
        self.theta = max(self.u, self.low)


class Face(RuleBasedStateMachine):
    @initialize(foreach=st.sampled_from([None, True, False]))
    def build(self, foreach):
        self.foreach = foreach
        self.gains = {"ki": 0.1, "kp": 1.0, "nu": 0.3}
        self.dtype, self.close, self.kept = torch.float64, 1e-9, None
        self.lagrangian, self.dual = self.fresh()
        self.model = {
            "equal": [Multiplier(-math.inf) for _ in range(SIZE)],
            "bounded": [Multiplier(0.0) for _ in range(SIZE)],
            "band": [Multiplier(0.0) for _ in range(2 * SIZE)],
        }

    def fresh(self):
        lagrangian = nupi.Lagrangian(
            {
                "equal": nupi.Equality(SIZE),
                "bounded": nupi.Inequality(SIZE),
                "band": nupi.Band(SIZE, tolerance=0.5),
            }
        ).to(self.dtype)
        return lagrangian, nupi.NuPI(lagrangian.parameters(), **self.gains, foreach=self.foreach)

    def expect(self, name, errors):
        """One step of some constraints of a group, by number. While kp is 0, a group without state keeps none."""
        idle = self.gains["kp"] == 0 and all(m.xi is None for m in self.model[name])
        for i, e in errors.items():
            if name == "band":
                self.model["band"][2 * i].step(e[0], **self.gains, idle=idle)
                self.model["band"][2 * i + 1].step(e[1], **self.gains, idle=idle)
            else:
                self.model[name][i].step(e, **self.gains, idle=idle)

    def errors(self, name, value):
        return (value - 0.5, -value - 0.5) if name == "band" else value

    @rule(
        equal=three, bounded=three, band=three, left_out=st.sampled_from([None, "equal", "bounded", "band"])
    )
    def ascend(self, equal, bounded, band, left_out):
        given = {"equal": equal, "bounded": bounded, "band": band}
        given.pop(left_out, None)
        self.lagrangian.ascend(self.dual, {n: torch.tensor(v, dtype=self.dtype) for n, v in given.items()})
        for name, values in given.items():
            self.expect(name, {i: self.errors(name, value) for i, value in enumerate(values)})

    @rule(name=st.sampled_from(["equal", "bounded", "band"]), which=rows, data=st.data())
    def ascend_rows(self, name, which, data):
        values = data.draw(st.lists(numbers, min_size=len(which), max_size=len(which)))
        seen = nupi.Indexed(torch.tensor(values, dtype=torch.float64), torch.tensor(which))
        self.lagrangian.ascend(self.dual, {name: seen})
        totals = {}
        for i in dict.fromkeys(which):
            each = [self.errors(name, v) for v, row in zip(values, which, strict=True) if row == i]
            totals[i] = tuple(map(sum, zip(*each, strict=True))) if name == "band" else sum(each)
        self.expect(name, totals)

    @rule(
        name=st.sampled_from(["equal", "bounded", "band"]),
        sums=three,
        counts=st.lists(st.integers(0, 3), min_size=SIZE, max_size=SIZE),
    )
    def ascend_averages(self, name, sums, counts):
        seen = nupi.Averaged(torch.tensor(sums, dtype=torch.float64), torch.tensor(counts))
        self.lagrangian.ascend(self.dual, {name: nupi.Measured(soft=torch.zeros(SIZE), hard=seen)})
        pairs = enumerate(zip(sums, counts, strict=True))
        self.expect(name, {i: self.errors(name, total / count) for i, (total, count) in pairs if count})

    @rule(
        gain=st.sampled_from(["ki", "kp", "nu"]),
        value=st.sampled_from([0.0, 0.05, 0.4]),
    )
    def change_a_gain(self, gain, value):
        self.gains[gain] = value
        self.dual.param_groups[0][gain] = value

    @rule(how=st.sampled_from(["pre", "post"]), equal=three, bounded=three, by_rows=st.booleans())
    def a_hook_raises(self, how, equal, bounded, by_rows):
        def raises(*_):
            raise ZeroDivisionError

        register = self.dual.register_step_pre_hook if how == "pre" else self.dual.register_step_post_hook
        handle = register(raises)
        seen = torch.tensor(bounded, dtype=torch.float64)
        violations = {"equal": torch.tensor(equal, dtype=torch.float64), "bounded": seen}
        if by_rows:
            violations["bounded"] = nupi.Indexed(seen[:1], torch.tensor([2]))
        with pytest.raises(ZeroDivisionError):
            self.lagrangian.ascend(self.dual, violations)
        handle.remove()

    @rule(number=st.integers(1, 90), equal=three, bounded=three, which=rows, by_rows=st.booleans())
    def any_operation_raises(self, number, equal, bounded, which, by_rows):
        """A step that has fewer operations than that is a good one, of which the model knows no more."""
        seen = torch.tensor(bounded, dtype=self.dtype)
        violations = {"equal": torch.tensor(equal, dtype=self.dtype), "bounded": seen}
        if by_rows:
            violations["bounded"] = nupi.Indexed(seen[:1], torch.tensor(which[:1]))
        twins, failing = copy.deepcopy((self.lagrangian, self.dual)), FailAt(number)
        try:
            with failing:
                self.lagrangian.ascend(self.dual, violations)
        except Injected:
            pass
        else:
            self.lagrangian, self.dual = twins

    @rule(equal=three)
    def a_hook_looks_on(self, equal):
        """Steps that somebody watches are taken another way, to the same numbers."""
        seen = []
        handle = self.dual.register_step_post_hook(lambda *_: seen.append(1))
        self.lagrangian.ascend(self.dual, {"equal": torch.tensor(equal, dtype=self.dtype)})
        handle.remove()
        assert seen == [1]
        self.expect("equal", dict(enumerate(equal)))

    @rule(
        wrong=st.sampled_from(
            [
                torch.tensor([0.0, math.nan, 1.0]),
                torch.full((SIZE,), -math.inf),
                torch.zeros(SIZE + 1),
                torch.zeros(SIZE, dtype=torch.int64),
                nupi.Indexed(torch.ones(1), torch.tensor([SIZE])),
                nupi.Indexed(torch.tensor([math.inf]), torch.tensor([0])),
                nupi.Averaged(torch.ones(SIZE), torch.tensor([1, -1, 1])),
                [1.0, 2.0, 3.0],
            ]
        ),
        first=st.booleans(),
    )
    def an_input_is_wrong(self, wrong, first):
        good = torch.ones(SIZE, dtype=torch.float64)
        pair = {"bounded": wrong, "equal": good}
        with pytest.raises((ValueError, TypeError, IndexError)):
            self.lagrangian.ascend(self.dual, pair if first else dict(reversed(pair.items())))
        with pytest.raises(KeyError, match="not a constraint here"):
            self.lagrangian.ascend(self.dual, {"equal": good, "unknown": good})

    @rule(
        gain=st.sampled_from(["ki", "kp", "nu", "lr"]),
        value=st.sampled_from([math.nan, math.inf, torch.ones(7), "1", None]),
    )
    def a_gain_is_wrong(self, gain, value):
        good, self.dual.param_groups[0][gain] = self.dual.param_groups[0][gain], value
        with pytest.raises((ValueError, TypeError)):
            self.lagrangian.ascend(self.dual, {"equal": torch.ones(SIZE, dtype=torch.float64)})
        self.dual.param_groups[0][gain] = good

    @rule(scale=st.sampled_from([1e300, 1e308]))
    def a_step_overflows(self, scale):
        good, self.dual.param_groups[0]["lr"] = self.dual.param_groups[0]["lr"], scale
        if self.gains["ki"]:
            with pytest.raises(nupi.NonFiniteMultiplierError):
                self.lagrangian.ascend(self.dual, {"equal": torch.full((SIZE,), 1e20, dtype=self.dtype)})
        self.dual.param_groups[0]["lr"] = good

    @rule()
    def keep_a_checkpoint(self):
        state = self.lagrangian.state_dict(), self.dual.state_dict()
        self.kept = copy.deepcopy((state, self.model, self.gains, self.dtype, self.close))

    @precondition(lambda self: self.kept is not None)
    @rule()
    def go_back_to_the_checkpoint(self):
        """Into the problem that has gone on since, not into a fresh one: nothing of it may be left."""
        (multipliers, state), self.model, self.gains, dtype, self.close = copy.deepcopy(self.kept)
        self.dtype = dtype
        self.lagrangian.to(dtype)
        self.lagrangian.load_state_dict(multipliers)
        self.dual.load_state_dict(state)

    @rule()
    def resume_from_a_checkpoint(self):
        file = io.BytesIO()
        torch.save((self.lagrangian.state_dict(), self.dual.state_dict()), file)
        file.seek(0)
        multipliers, state = torch.load(file, weights_only=True)
        self.lagrangian, self.dual = self.fresh()
        self.lagrangian.load_state_dict(multipliers)
        self.dual.load_state_dict(state)

    @rule()
    def a_checkpoint_of_another_problem_is_refused(self):
        other = nupi.Lagrangian({"equal": nupi.Equality(SIZE + 1), "bounded": nupi.Inequality(SIZE)})
        with pytest.raises(RuntimeError, match="nothing was loaded"):
            self.lagrangian.load_state_dict(other.state_dict())
        with pytest.raises(ValueError, match="nothing was loaded"):
            self.dual.load_state_dict(nupi.NuPI(other.parameters(), 0.1).state_dict())

    @rule()
    def go_on_with_a_copy(self):
        self.lagrangian, self.dual = copy.deepcopy((self.lagrangian, self.dual))

    @rule(move=st.sampled_from(["half", "bfloat16", "cpu"]))
    def move_where_multipliers_stay_as_wide(self, move):
        getattr(self.lagrangian, move)()

    @rule(dtype=st.sampled_from([torch.float32, torch.float64]))
    def move_to_another_type(self, dtype):
        """The numbers of the model stay exact: from the first float32 on, they agree to its digits."""
        self.lagrangian.to(dtype)
        self.dtype = dtype
        if dtype == torch.float32:
            self.close = 1e-4

    @precondition(lambda self: hasattr(self, "model"))
    @invariant()
    def multipliers_are_the_models(self):
        for name, multipliers in self.model.items():
            found = self.lagrangian.multipliers[name].reshape(-1).tolist()
            assert found == pytest.approx([m.theta for m in multipliers], rel=self.close, abs=self.close)
            assert self.lagrangian.multipliers[name].dtype == self.dtype
        for state in self.dual.state.values():
            assert all(torch.isfinite(value).all() for value in state.values())
        assert (self.lagrangian.multipliers["bounded"] >= 0).all()
        assert all(param.grad is None for param in self.lagrangian.parameters())


Face.TestCase.settings = settings(
    parent=settings.get_profile(settings.get_current_profile_name())
    if hasattr(settings, "get_current_profile_name")
    else settings.default,
    stateful_step_count=30,
)
test_face = Face.TestCase
