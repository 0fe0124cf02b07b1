"""The tables of `./dev bench programs` as text."""
import math

from figures import (cases_of, cell, distinct, killed_attempts, least_rounds, means, median_of, over_limit_percent,
                     pairs_of, peak_of, plain_rate, ratio, select, shares_of, systems_of)

OVER_LIMIT = 5  # percent; farpage promises no more


def outcome(found):
    """A cell as text."""
    if found is None:
        return "-"
    if found.slowdown is None:
        return "killed" if found.killed else "late"
    return f"{found.slowdown:.2f}x" + ("!" if found.killed or found.late else "")


def plain_score(samples, program, what):
    rate = plain_rate(samples, program, what)
    return f"{1 / rate:.2f} s" if what == "run" else f"{rate:,.0f} {what}/s"


def number(value, form=",.0f"):
    return "-" if value is None else "failed" if value == math.inf else f"{value:{form}}"


def mib(size):
    return None if size is None else size / (1 << 20)


def slowdowns(samples):
    lines = [f"{'':32}" + "".join(f"{share:>9} %" for share in shares_of(samples)) + "   of the peak local"]
    for program, what in cases_of(samples):
        lines.append(f"{program}: plain {plain_score(samples, program, what)}, peak "
                     f"{int(peak_of(samples, program)) >> 20} MiB")
        for system in systems_of(samples):
            lines.append(f"  {system:30}" + "".join(f"{outcome(cell(samples, program, what, system, share)):>11}"
                                                    for share in shares_of(samples)))
    lines.append("killed, late: in half of the rounds or more; !: in fewer, which count as the slowest for the median")
    lines.append(kill_words(samples))
    return lines


def kill_words(samples):
    """Of the systems in which there were any."""
    counts = {system: killed_attempts(samples, system) for system in systems_of(samples)}
    words = [f"{system}: {killed} of {attempts}" for system, (killed, attempts) in counts.items() if killed]
    return f"attempts that the kernel killed (each run has three): {'; '.join(words) or 'none'}"


def geometric_means(samples):
    lines = ["geometric mean of the slowdowns over the programs"]
    found = {share: means(samples, share) for share in shares_of(samples)}
    for system in systems_of(samples):
        lines.append(f"  {system:30}" + "".join(f"{number(found[share][system].value, '.2f'):>10} "
                                                for share in found))
    for share in found:
        mean = next(iter(found[share].values()))
        lines.append(f"  at {share} %: {len(mean.programs)} programs" +
                     (f", without {', '.join(mean.left_out)} (killed, late or not measured in a system)"
                      if mean.left_out else ""))
    return lines


def ratio_words(found):
    if found.worst is None:
        return "no program was measured in both"
    return (f"{number(found.mean.value, '.2f')}; worst: {found.worst_program}, {number(found.worst, '.2f')}" +
            (f" (without {', '.join(found.mean.left_out)})" if found.mean.left_out else ""))


def ratios(samples):
    pairs = pairs_of(systems_of(samples))
    lines = ["ratios of slowdowns, geometric means; above 1.00: the first is slower"] if pairs else []
    for first, second in pairs:
        for share in shares_of(samples):
            lines.append(f"  {first} / {second}, {share} %: {ratio_words(ratio(samples, first, second, share))}")
    return lines


def page_rows(samples):
    """(program, share, system, pages in, pages out, peak by limit, MiB beside the group)"""
    for program in distinct(samples, "program"):
        for share in shares_of(samples):
            for system in systems_of(samples):
                mine = [sample for sample in select(samples, program=program, system=system, share=share)
                        if sample["rates"] is not None]
                if mine:
                    yield (program, share, system, median_of(mine, "pages_in"), median_of(mine, "pages_out"),
                           max(map(over_limit_percent, mine)), mib(median_of(mine, "beside_bytes")))


def pages(samples):
    lines = [f"{'pages moved':48}{'in':>12}{'out':>12}{'over limit':>12}{'beside':>12}"]
    for program, share, system, came, went, over, beside in page_rows(samples):
        lines.append(f"  {program:10}{share:3} %  {system:30}{number(came):>12}{number(went):>12}"
                     f"{round(over, 1) + 0.0:>10.1f} %{number(beside, ',.1f'):>8} MiB" +
                     (" !" if over > OVER_LIMIT else ""))
    lines.append("over limit: by how much the peak of the worst round exceeded it; beside: memory of this machine that "
                 "no limit contains")
    return lines


def all_tables(report):
    samples = report["samples"]
    if not systems_of(samples):
        return "no run in a system is finished"
    head = (f"farpage bench programs, {report['date']}, Linux {report['kernel']}, {report['cpus']} CPUs, commit "
            f"{report['commit']}, scale {report['scale']:g}, {least_rounds(samples)} of "
            f"{report['rounds']} rounds of each program in each system, or more")
    parts = [[head], slowdowns(samples), geometric_means(samples), ratios(samples), pages(samples)]
    return "\n\n".join("\n".join(part) for part in parts if part)
