"""`make mutants`: try a sample of cosmic-ray's mutants of the core, and print the share that the tests find."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from itertools import islice
from pathlib import Path

from tools.mutants.faults import Fault, fault_of, known_equivalent, mutations_of
from tools.mutants.kept import Kept
from tools.mutants.running import Baseline, measure, survives

ROOT = Path(__file__).parents[2]
CORE = ("rule.py", "multipliers.py", "lagrangian.py", "constraints", "violations", "ascent", "optim")

# Tests of the core that run in one process; of these, a fault gets those that run its lines.
FAST = (
    "tests/test_rule.py",
    "tests/test_lagrangian.py",
    "tests/test_refusals.py",
    "tests/test_constraints.py",
    "tests/test_multipliers.py",
    "tests/violations",
    "tests/ascent",
    "tests/optim",
    "tests/training/test_checkpoints.py",
    "tests/training/test_loading.py",
)
# A fault that survives these gets all of the following: several processes, compiled steps, exact solutions.
SLOW = (
    "tests/many_processes",
    "tests/test_own_violation.py",
    "tests/test_ground_truth.py",
    "tests/loop/test_penalties.py",
    "tests/test_state_machine.py",
    "tests/training/test_compile.py",
    "tests/training/test_compile_rows.py",
)
# A fault whose tests time out counts as found. The slow tests take minutes, so their limit must be long.
_PATIENCE = 4


def sources() -> list[Path]:
    """The files of the core."""
    found = [
        file
        for name in CORE
        for file in sorted(
            (ROOT / "src/nupi" / name).glob("*.py") if "." not in name else [ROOT / "src/nupi" / name]
        )
    ]
    return [file for file in found if file.name != "__init__.py"]


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="make mutants ARGS=...", description=__doc__)
    parser.add_argument("--sample", type=int, default=200, help="how many faults; 0 means all (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="which sample (default: 0)")
    parser.add_argument("--only", default="", help="only faults with this text in file, function or operator")
    parser.add_argument(
        "--timeout", type=float, default=300, help="seconds for the fast tests of one fault (default: 300)"
    )
    parser.add_argument("--tests", nargs="+", default=FAST, help="other fast tests than those of the core")
    parser.add_argument("--quick", action="store_true", help="leave out the slow tests")
    parser.add_argument("--goal", type=float, default=0, help="fail if fewer per cent are found")
    parser.add_argument("--report", type=Path, help="write the result as Markdown to this file too")
    return parser.parse_args()


def chosen_faults(options: argparse.Namespace) -> list[Fault]:
    """The sample, without equivalent faults.

    It is drawn before these are left out, so that a new entry in equivalent.txt does not change the sample.
    """
    equivalent = known_equivalent(Path(__file__).parent / "equivalent.txt", ROOT)
    every = [each for path in sources() for each in mutations_of(path, ROOT) if options.only in each.label]
    order = random.Random(options.seed).sample(every, len(every))
    faults = (fault for fault in (fault_of(mutation, ROOT) for mutation in order) if fault is not None)
    sample = list(islice(faults, options.sample or None))
    chosen = [fault for fault in sample if fault.name not in equivalent]
    print(
        f"{len(every)} mutants of cosmic-ray, {len(sample)} chosen with seed {options.seed}, "
        f"{len(sample) - len(chosen)} of them equivalent and left out"
    )
    return chosen


def is_found(fault: Fault, baseline: Baseline, options: argparse.Namespace) -> bool:
    """Whether any test fails with the fault in place."""
    tests = baseline.tests_for(fault)
    first = baseline.first_of(tests)
    rest = [test for test in tests if test not in set(first)]
    for some in (first, rest):
        files = sorted({test.partition("::")[0] for test in some})
        if some and not survives(fault, ROOT, some, files, options.timeout):
            return True
    return not options.quick and not survives(fault, ROOT, (), SLOW, _PATIENCE * options.timeout)


def main() -> None:
    """Try the faults, and print which survived."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that running tests end too
    chosen = chosen_faults(options)
    start = time.monotonic()
    kept = Kept(ROOT / "out/mutants", [*sources(), *(ROOT / "tests").rglob("*.py")])
    baseline = kept.baseline() if options.tests == FAST else None
    if baseline is None:
        baseline = measure(options.tests, [path.relative_to(ROOT).as_posix() for path in sources()], ROOT)
        if options.tests == FAST:
            kept.keep_baseline(baseline)
    seconds = time.monotonic() - start
    print(f"{len(baseline.seconds)} tests pass without a fault, in {seconds:.0f} s", flush=True)
    survivors = []
    for number, fault in enumerate(chosen, 1):
        begun = time.monotonic()
        known = kept.verdict(fault)
        found = is_found(fault, baseline, options) if known is None else known
        if known is None and options.tests == FAST and (found or not options.quick):
            kept.keep_verdict(fault, found=found)
        if not found:
            survivors.append(fault)
        verdict = "found   " if found else "SURVIVED"
        print(f"{number:4} {verdict} {time.monotonic() - begun:5.1f} s  {fault.name}", flush=True)
    share = 100 * (1 - len(survivors) / len(chosen)) if chosen else 100.0
    found_all, minutes = len(chosen) - len(survivors), (time.monotonic() - start) / 60
    lines = [
        f"mutants: {found_all} of {len(chosen)} found, {share:.1f}% (seed {options.seed}, {minutes:.0f} minutes)",
        *(f"- survived: `{fault.name}`, line {fault.lines[0]}" for fault in survivors),
    ]
    print("\n".join(lines))
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if share < options.goal:
        sys.exit(f"the goal is {options.goal:g}%")


if __name__ == "__main__":
    main()
