"""What the samples of `./dev bench programs` say: slowdowns, geometric means and ratios. Pure functions of them.

A case is one thing that a program does: its run, or the GETs or SETs of a cache. A slowdown is the median rate of the
plain runs by the median rate of the runs in a system. A run that was killed or late counts as slower than
any other, so the median exists if more than half of the rounds came to their end.
"""
import math
import statistics
import typing

# First by second system, as far as both were measured; each name stands for all systems that begin with it.
PAIRS = [("farpage shm", "swap zram"), ("farpage tcp", "farpage shm"), ("farpage tcp", "swap loop"),
         ("farpage verbs", "swap ")]


class Cell(typing.NamedTuple):
    slowdown: float | None  # None: half of the runs or more failed
    least: float | None  # over the rounds that came to their end
    most: float | None
    killed: int  # runs
    late: int


class Mean(typing.NamedTuple):
    value: float | None
    programs: list
    left_out: list


class Ratio(typing.NamedTuple):
    first: str
    second: str
    share: int
    mean: Mean
    worst: float | None  # infinite: the first failed a program that the second did not
    worst_program: str | None


def distinct(samples, field):
    return list(dict.fromkeys(sample[field] for sample in samples))


def systems_of(samples):
    return [name for name in distinct(samples, "system") if name != "plain"]


def shares_of(samples):
    return sorted({sample["share"] for sample in samples if sample["system"] != "plain"}, reverse=True)


def select(samples, **wanted):
    return [sample for sample in samples if all(sample[key] == value for key, value in wanted.items())]


def cases_of(samples):
    """(program, what) in the order of the samples."""
    found = {}
    for sample in samples:
        for what in sample["rates"] or []:
            found[sample["program"], what] = True
    return list(found)


def plain_rate(samples, program, what):
    return statistics.median(sample["rates"][what] for sample in select(samples, program=program, system="plain"))


def peak_of(samples, program):
    return statistics.median(sample["peak_bytes"] for sample in select(samples, program=program, system="plain"))


def cell(samples, program, what, system, share):
    """None: nothing was measured there (yet)."""
    mine = select(samples, program=program, system=system, share=share)
    if not mine:
        return None
    plain = plain_rate(samples, program, what)
    rates = [sample["rates"][what] if sample["rates"] is not None else 0 for sample in mine]
    # The mean of a rate and of none would be no rate.
    median = statistics.median(rates) if min(rates) > 0 else statistics.median_low(rates)
    slowdowns = [plain / rate for rate in rates if rate > 0]
    killed, late = (sum(has_failed(sample, how) for sample in mine) for how in ("killed", "late"))
    return Cell(plain / median if median > 0 else None, min(slowdowns, default=None), max(slowdowns, default=None),
                killed, late)


def has_failed(sample, how):
    """Samples before 2026-11-25 do not say that they were killed, and none of them was late."""
    return sample["rates"] is None and how == ("late" if sample.get("late") else "killed")


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def slowdown_of_program(samples, program, system, share):
    """Over all that it does, so that each program counts once. None: it failed there, or was not measured."""
    cells = [cell(samples, program, what, system, share) for name, what in cases_of(samples) if name == program]
    if not cells or any(found is None or found.slowdown is None for found in cells):
        return None
    return geometric_mean([found.slowdown for found in cells])


def has_failed_program(samples, program, system, share):
    """In one of the things that it does, in half of its runs or more."""
    cells = [cell(samples, program, what, system, share) for name, what in cases_of(samples) if name == program]
    return any(found is not None and found.slowdown is None for found in cells)


def least_rounds(samples):
    """Of each program in each system in which it ran."""
    cells = [(sample["program"], sample["system"], sample["share"]) for sample in samples]
    return min(map(cells.count, cells))


def means(samples, share):
    """By system: over the programs that no system failed, the same ones for all."""
    systems, programs = systems_of(samples), distinct(samples, "program")
    slowdowns = {program: [slowdown_of_program(samples, program, system, share) for system in systems]
                 for program in programs}
    kept = [program for program in programs if None not in slowdowns[program]]
    left_out = [program for program in programs if program not in kept]
    return {system: Mean(geometric_mean([slowdowns[program][i] for program in kept]) if kept else None, kept, left_out)
            for i, system in enumerate(systems)}


def pairs_of(systems):
    return [(first, second) for one, other in PAIRS for first in systems if first.startswith(one)
            for second in systems if second.startswith(other) and second != first]


def ratio(samples, first, second, share):
    """Of their slowdowns: above 1, the first is slower. The mean is over the programs that neither failed; the worst is
    of those, too, that the first failed and the second did not."""
    ratios, left_out, failed = {}, [], []
    for program in distinct(samples, "program"):
        mine, other = (slowdown_of_program(samples, program, system, share) for system in (first, second))
        if mine is None or other is None:
            left_out.append(program)
        else:
            ratios[program] = mine / other
        if other is not None and mine is None and has_failed_program(samples, program, first, share):
            failed.append(program)
    worst = ", ".join(failed) or max(ratios, key=ratios.get, default=None)
    return Ratio(first, second, share, Mean(geometric_mean(list(ratios.values())) if ratios else None, list(ratios),
                                            left_out), math.inf if failed else ratios.get(worst), worst)


def killed_attempts(samples, system):
    """(attempts that the kernel killed, all attempts): a killed run is repeated."""
    mine = [sample for sample in samples if sample["system"] == system]
    attempts = sum(sample.get("attempts", 1) for sample in mine)
    return attempts - sum(not has_failed(sample, "killed") for sample in mine), attempts


def median_of(samples, field):
    """Over those that have it; None: none has."""
    values = [sample[field] for sample in samples if field in sample]
    return statistics.median(values) if values else None


def over_limit_percent(sample):
    """How far the peak was above the limit."""
    return 100 * (sample["peak_bytes"] / sample["limit_bytes"] - 1) if sample["rates"] is not None else 0
