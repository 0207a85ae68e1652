"""The rule of SelfTuned against itself in plain numbers: one constraint at a time, every constant written out."""

from math import exp, sqrt

import numpy as np
import pytest
import torch

import nupi
from nupi.constraints import Bounds
from nupi.optim import identification, self_tuning, taking_in
from nupi.optim.retuning import SLOTS
from nupi.optim.shown import see

CASES = 400
TINY = 1e-30


def drawn(seed, *, guess):
    """States of many constraints: sizes over decades, either sign, and zeros where a state can be 0."""
    rng = np.random.default_rng(seed)

    def sizes(low=-3, high=2):
        return 10 ** rng.uniform(low, high, CASES)

    def signed(low=-3, high=2):
        return sizes(low, high) * rng.choice([-1.0, 1.0], CASES)

    def some(values, share=0.2):
        return np.where(rng.random(CASES) < share, 0.0, values)

    state = {name: some(signed()) for name in SLOTS[not guess, False]}
    for name in (
        "worst",
        "balance",
        "least",
        "proven",
        "speed",
        "response",
        "slope",
        "most",
        "jump",
        "s_ee",
        "s_mm",
        "s_yy",
    ):
        if name in state:
            state[name] = some(sizes())
    state["age"] = np.floor(10 ** rng.uniform(0, 3.5, CASES))
    state["boost"] = rng.uniform(1, 3, CASES)
    state["curvature"] = some(sizes(-4, 1))
    state["sure"] = some(rng.random(CASES), 0.5)
    state["covariance"] = np.where(rng.random(CASES) < 0.5, -sizes(-6, 0), sizes(-6, 0))
    # A multiplier near what it was, a slow mean near the mean, a violation near its worst: what the rules look for.
    state["slow"] = np.where(
        rng.random(CASES) < 0.5, state["mean"] * rng.uniform(0.9, 1.2, CASES), state["slow"]
    )
    state["lagging"] = state["level"] * rng.uniform(0.3, 1.3, CASES)
    if guess:
        state["e_band"] = some(state["mean"] * signed(-2, 0.5))
        state["s_ym"] = signed(-2, 1) * np.sqrt(state["s_mm"] * state["s_yy"])
        state["s_em"] = signed(-3, 0) * np.sqrt(state["s_ee"] * state["s_mm"])
    return state, signed(), signed()


def scalars(state, number):
    return {name: float(values[number]) for name, values in state.items()}


def tensors(state):
    return {
        name: torch.from_numpy(np.asarray(values, dtype=np.float64).copy()) for name, values in state.items()
    }


def violation(s, *, both):
    return abs(s["mean"]) if both else max(s["mean"], 0.0)


def watch(s, theta, e, steps, stride):
    rate = min(32 * stride / steps, 1.0)
    before, s["change"] = s["change"], e - s["last"]
    s["last"] = e
    s["covariance"] += (before * s["change"] - s["covariance"]) / 32
    s["jump"] = max(s["jump"] * exp(-min(4 * stride / steps, 1.0)), abs(s["change"]))
    s["age"] += stride
    s["mean"] += rate * (e - s["mean"])
    s["level"] += rate * (theta - s["level"])
    s["slow"] += min(4 * stride / steps, 1.0) * (e - s["slow"])
    s["lagging"] += min(4 * stride / steps, 1.0) * (theta - s["lagging"])


def retune(s, steps, stride, past, per_step, *, both, period=1.0):
    guess = "most" in s
    noise = sqrt(max(s["covariance"] / (exp(-max(s["age"] - 2, 1) / 32) - 1), 0.0))
    rate = min(32 * stride / steps, 1.0)
    left = max(violation(s, both=both) - 2 * noise * sqrt(rate / (2 - rate)), 0.0)
    s["worst"] = max(s["worst"], left)
    grown = max(abs(s["level"]) / max(abs(s["lagging"]), TINY), 1.0)
    if left > 0 and abs(s["slow"]) / grown**0.25 - 1.001 * abs(s["mean"]) > noise * sqrt(rate / (2 - rate)):
        s["proven"] = max(s["proven"], abs(s["level"]))
    scale = max(s["balance"], s["least"], s["proven"] / 2)
    far = abs(s["level"]) / max((4 if guess else 1) * 4 * scale, TINY)
    if s["age"] > steps and left > 0.03 * s["worst"] and far <= 1:
        s["boost"] = min(s["boost"] * exp(min(9 / steps, 0.1) * past), max(0.25 * steps / 40, 1.0))
    unmoved = left > 0 and abs(s["mean"]) > 0.9 * abs(s["slow"])
    s["stuck"] = float(unmoved and abs(s["level"]) > scale and s["age"] > steps)
    relaxed = max(s["curvature"] * per_step * period, 1e-6)
    gone = 1 - exp(-relaxed)
    b = max(s["response"] * per_step * period * gone / relaxed, TINY)
    top = s["speed"] * per_step
    w = (min(top, 4 / steps) if top > 0 else 4 / steps) * s["boost"] * min(2 * s["age"] / steps, 1.0) * 4 / 3
    w *= period
    quiet = 0.1 * b * scale / max(noise, TINY)
    allowed = max(quiet, (quiet**2 / 2) ** (1 / 3))
    kappa = min(0.7 * exp(-relaxed), max(allowed, 2 * w if left > 0 else 0.0))
    leap = (4 if guess else 1) * 0.7 * scale if scale > 1e-11 else float("inf")
    at_rest = 1e-3 * left if guess else 0.0
    free = b * leap / max(s["jump"], at_rest, TINY)
    kappa = min(kappa, max(free, sqrt(free) / 2))
    if guess and s["sure"] <= 0:
        kappa = min(kappa, 0.1)
    w = min(w, (gone + kappa) / 2, 0.5)
    known = s["response"] > 0
    ki = w * max(gone + kappa - w, 0.0) / ((1 - w) * b * (1 + far**2))
    s["ki"] = min(ki, leap / max(s["jump"], left, TINY)) if known else 0.0
    s["kp"] = kappa / b if known else 0.0
    s["weight"] = 1 - exp(-4 * kappa)
    s["damping"] = s["kp"] * s["weight"]
    s["pull"] = s["ki"] + s["damping"]


def identify(s, theta, steps, stride, scale, *, both):
    omega = 4 * stride / steps
    fast, slow, keep = min(8 * omega, 1.0), min(omega / 2, 0.5), exp(-omega)
    before, cause = s["e_band"], s["m_fast"] - s["m_slow"]
    s["e_slow"] += slow * (s["e_fast"] - s["e_slow"])
    s["m_fast"] += fast * (theta - s["m_fast"])
    s["m_slow"] += slow * (theta - s["m_slow"])
    s["e_band"] = s["e_fast"] - s["e_slow"]
    y = (before - s["e_band"]) / stride
    pairs = {
        "ee": before**2,
        "em": before * cause,
        "mm": cause**2,
        "ye": y * before,
        "ym": y * cause,
        "yy": y * y,
    }
    for name, product in pairs.items():
        s[f"s_{name}"] = s[f"s_{name}"] * keep + product
    ee = max(s["s_ee"], TINY)
    mm, ym = s["s_mm"] - s["s_em"] ** 2 / ee, s["s_ym"] - s["s_ye"] * s["s_em"] / ee
    rest = s["s_yy"] - s["s_ye"] ** 2 / ee
    found = ym / max(mm, TINY)
    explained = ym * found
    samples = (1 - exp(-4 / steps * s["age"])) / (1 - keep)
    most = max(s["most"], abs(s["mean"]))
    grown = most / max(s["most"] if s["most"] > 0 else most, TINY)
    balance = scale / max(most, TINY) if most > 0 else 0.0
    enough = explained > max(8 / samples, 0.3) * max(rest - explained, 0.0)
    good = enough and found > 0 and mm > 1e-6 * s["s_mm"] and samples > 8
    good = good and s["s_mm"] > samples * (0.04 * balance) ** 2
    known = s["response"] * grown**2 if s["sure"] == 0 else s["response"]
    held = known if known > 0 else 4 / steps * most**2 / scale
    fallen = held * exp(-min(3 * omega, 0.25))
    size = violation(s, both=both)
    patient = s["age"] > steps / 8 and size > 0.03 * most
    stalled = abs(s["e_band"]) < 0.1 * size and patient and abs(s["level"]) <= 16 * balance
    s["response"] = max(found, fallen) if good else fallen if stalled else held
    s["sure"] = explained / max(rest, TINY) if good else s["sure"] * keep
    s["most"], s["balance"] = most, balance


@pytest.mark.parametrize("guess", [False, True], ids=["measured", "identified"])
@pytest.mark.parametrize(
    "bounds", [None, Bounds(), Bounds(0.0, 5.0, both=True)], ids=["free", "bounded", "both"]
)
@pytest.mark.parametrize(
    ("steps", "stride", "per_step", "period"),
    [(100.0, 1, 1.0, 1.0), (300.0, 4, 7.0, 1.0), (3.0, 1, 1.0, 1.0), (200.0, 2.5, 2.0, 2.5)],
)
def test_a_retuning_is_the_one_in_plain_numbers(guess, bounds, steps, stride, per_step, period):
    both = bounds is None or bounds.both
    state, theta, e = drawn(int(steps) + int(stride) + guess, guess=guess)
    expected = []
    for number in range(CASES):
        s = scalars(state, number)
        watch(s, theta[number], e[number], steps, stride)
        if guess:
            s["e_fast"] += min(32 / steps, 1.0) * (e[number] - s["e_fast"])
            identify(s, theta[number], steps, stride, 2.0, both=both)
        retune(s, steps, stride, 2 * stride, per_step, both=both, period=period)
        expected.append(s)
    kept, moved, error = tensors(state), torch.from_numpy(theta), torch.from_numpy(e)
    self_tuning.watch_(moved, kept, error, steps, stride)
    if guess:
        identification.hear_(kept, error, steps)
        identification.identify_(moved, kept, steps, stride, 2.0, bounds)
    self_tuning.retune_(kept, steps, stride, 2 * stride, per_step, bounds, period)
    for name, values in kept.items():
        wanted = torch.tensor([s[name] for s in expected], dtype=torch.float64)
        torch.testing.assert_close(values, wanted, rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
    if steps == 100.0:  # the cases are not all of one kind
        shares = {"stuck": kept["stuck"] > 0, "kp": kept["kp"] > 0, "worst": kept["worst"] > 0}
        shares["proven"] = kept["proven"] > torch.from_numpy(state["proven"])
        assert all(float(each.double().mean()) > 0.005 for each in shares.values())


def test_what_is_taken_in_is_that_in_plain_numbers():
    """A measurement and what was known, averaged in logarithms; strained and vain ones do not follow downwards."""
    rng = np.random.default_rng(5)
    state, _, _ = drawn(3, guess=False)
    state["stuck"] = rng.integers(0, 2, CASES).astype(float)
    group = {"steps": 80.0, "taken": 50, "measured_at": 30, "per_step": 3.0}
    logs = rng.normal(0, 2, (3, CASES))
    count = rng.integers(0, 3, CASES).astype(float)
    speed, bent = rng.random((2, CASES))
    note = np.vstack([count, count * logs[0], count * logs[1], count * logs[2], count * speed, count * bent])
    expected, same = [], np.ones(CASES)
    for i in range(CASES):
        s = scalars(state, i)
        if count[i]:
            new, balance, slope = np.exp(logs[:, i])
            known = s["response"] > 0
            steepest = max(slope, s["slope"] * (1.0 if s["stuck"] > 0 else 0.5 ** (20 / 80)))
            balance *= slope / steepest
            least = 4 / 80 * s["worst"] / new * (slope / steepest) ** 2
            least = least if balance <= 0.01 * least else 0.0
            scale = max(s["balance"], s["least"], s["proven"] / 2)
            vain = s["stuck"] > 0 and slope < 0.5 * steepest
            ratios = [(s["response"], new), (s["balance"], balance)]
            same[i] = min(
                *(min(pair) / max(pair) for pair in ratios), exp(-3 * abs(s["curvature"] - bent[i]))
            )
            strained = known and (abs(s["level"]) > 4 * scale or vain)
            if known:
                response = sqrt(min(max(s["response"], new / 10), new * 100) * new)
                averaged = sqrt(min(max(s["balance"], balance / 100), balance * 10) * balance)
                settled = s["age"] > 80 / 8
                changed = {
                    "response": max(response, s["response"]) if strained else response,
                    "balance": min(averaged, s["balance"]) if vain else averaged,
                    "curvature": (s["curvature"] + bent[i]) / 2 if s["curvature"] else bent[i],
                    "sure": min(s["response"], new) / max(s["response"], new),
                    "least": s["least"] if settled else max(s["least"], least),
                }
            else:
                changed = {
                    "response": new,
                    "balance": balance,
                    "curvature": bent[i],
                    "sure": 0.0,
                    "least": least,
                }
            s |= {**changed, "speed": speed[i], "slope": steepest}
        expected.append(s)
    kept = tensors(state)
    near = taking_in.take_in(kept, torch.from_numpy(note), group)
    torch.testing.assert_close(near, torch.from_numpy(same), rtol=1e-8, atol=1e-12)
    for name, values in kept.items():
        wanted = torch.tensor([s[name] for s in expected], dtype=torch.float64)
        torch.testing.assert_close(values, wanted, rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("rows", "apart"), [(100, True), (150, True), (299, True), (300, False)])
def test_rows_are_looked_at_apart_if_a_batch_shows_some_of_them(rows, apart):
    lagrangian = nupi.Lagrangian({"each": nupi.Equality(300)})
    x = torch.arange(1.0, rows + 1, requires_grad=True)
    where = torch.arange(300).flip(0)[:rows]
    ((target, violation),) = lagrangian._paired({"each": nupi.Indexed(x.square(), where)})
    shown = see(target, violation)
    if apart:
        assert shown.elements.tolist() == sorted(where.tolist())
        assert shown.share == rows / 300
        assert shown.errors.tolist() == x.square().flip(0).tolist()
    else:
        assert shown.elements is None
        assert torch.equal(shown.errors[where], x.square())
    (slope,) = torch.autograd.grad(shown.errors.sum(), x)
    assert torch.equal(slope, 2 * x)


@pytest.mark.parametrize("bounds", [None, Bounds(0.0, None)])
def test_before_steps_are_past_the_gains_are_the_same_without_asking_what_is_overdue(bounds):
    numbers, _, _ = drawn(7, guess=False)
    numbers["age"] = np.minimum(numbers["age"], 300.0)
    found = []
    for early in (False, True):
        state = {name: torch.tensor(value) for name, value in numbers.items()}
        self_tuning.retune_(state, 300.0, 4.0, 48.0, 2.0, bounds, early=early)
        found.append(state)
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name
