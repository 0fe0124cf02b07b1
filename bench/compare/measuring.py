"""Runs programs in the systems in turn, and gives a sample for each run.

The limit of a run is a share of the plain run's peak. Both are what a memory control group counts of the program
and its children (memory_group.py): anonymous memory, page tables and kernel stacks. A run before the first one
brings its executables and libraries into the page cache: the group that reads them first would pay for them (33 of
50 MiB of a small compilation). Its input files and its output are not its memory.

- Swap: the limit is that of the group, and the kernel enforces it. Nothing is added.
- farpage: its budget, --local, is of far memory only. The program's group also counts what stays local, and what
  the pager exceeds the budget by. How much that is, is measured: a run before the first round, at the
  smallest share, gives the peak of the group less --local. --local is then the limit less that. The peak of each
  run's group is in its sample, beside the limit: they should differ by less than 5 %.

What a system takes of this machine's memory beside the group is in the sample, too ("beside_bytes"): the anonymous
memory and page tables of farpage's pager, and the memory of zram's compressed pages. No limit contains it.
"""
import sys

from memory_group import memory_group
from systems import Farpage, Place, unless_killed
from workloads import Late

LEAST_LOCAL = 4 << 20


def run_plainly(program):
    with memory_group() as group:
        result = program.run(Place(group))
        return result, {"program": program.name, "system": "plain", "share": 100, "peak_bytes": group.peak_bytes(),
                        "rates": result.rates}


def run_in(system, program, limit, local):
    """limit: of the group; local: of what the system itself limits."""
    with memory_group() as group, system.confine(local, group) as place:
        result = program.run(place)
        return result, {"limit_bytes": limit, "peak_bytes": group.peak_bytes(), "rates": result.rates, **place.moved()}


class Budgets:
    """What each system is told for a limit, for each program."""

    def __init__(self):
        self.beside_far = {}  # by program

    def measure(self, system, program, limit):
        """Once for each program, with the first farpage system."""
        if isinstance(system, Farpage) and program.name not in self.beside_far:
            _, found = run_in(system, program, limit, max(LEAST_LOCAL, limit))
            self.beside_far[program.name] = max(0, found["peak_bytes"] - max(LEAST_LOCAL, limit))

    def local(self, system, program, limit):
        if not isinstance(system, Farpage):
            return limit
        return max(LEAST_LOCAL, limit - self.beside_far[program.name])


def take(system, program, share, limit, budgets, expected):
    """A sample, also of a run that the kernel ended or that was late."""
    attempts = 0

    def attempt():
        nonlocal attempts
        attempts += 1
        return run_in(system, program, limit, local)

    about = {"program": program.name, "system": system.name, "share": share}
    try:
        budgets.measure(system, program, limit)
        local = budgets.local(system, program, limit)
        found = unless_killed(system, attempt)
    except Late:
        return {**about, "limit_bytes": limit, "rates": None, "late": True, "attempts": attempts}
    about["attempts"] = attempts
    if found is None:
        return {**about, "limit_bytes": limit, "rates": None, "killed": True}
    result, sample = found
    if result.output != expected:
        raise RuntimeError(f"{program.name} in {system.name}: the output differs")
    return {**about, "local_bytes": local, **sample}


def measure(programs, systems, shares, rounds):
    """Yields the samples. Each round runs each program plainly and then in each system."""
    budgets = Budgets()
    for number in range(rounds):
        for program in programs:
            if number == 0:
                run_plainly(program)  # warms the page cache
            result, plain = run_plainly(program)
            yield {"round": number + 1, **plain}
            peak = plain["peak_bytes"]
            for system in systems:
                with system.running(peak):
                    for share in sorted(shares):
                        print(f"programs: round {number + 1} of {rounds}, {program.name}, {system.name}, "
                              f"{share} % of {peak >> 20} MiB", file=sys.stderr, flush=True)
                        yield {"round": number + 1,
                               **take(system, program, share, peak * share // 100, budgets, result.output)}
