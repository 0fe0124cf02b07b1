#!/usr/bin/env python3
"""The table of lab_fault.sh: medians over the rounds, and each against ib_read_lat of its round, the median
of three runs.

best: the round with the lowest 99th percentile against ib_read_lat, the one that the host disturbed least.
"""
import json
import pathlib
import statistics
import sys


def medians(rows):
    """Of each column; None for the percentiles of a stage that is not timed itself."""
    return [None if None in column else statistics.median(column) for column in zip(*rows)]


def of_rounds(out, rounds):
    """The results of ROUNDS rounds below OUT, as JSON: microseconds and ratios to ib_read_lat."""
    samples = {}  # name -> [(p50, p99, p50 / ib_read_lat, p99 / ib_read_lat)]
    stages = {}  # name -> [(mean, p50, p99)]
    taken = []

    def load(name, number):
        return json.loads((out / f"{name}.{number}.json").read_text())

    def row(report, name):
        return next(r for r in report["rows"] if r["name"] == name)

    for number in range(1, rounds + 1):
        lines = (out / f"perftest.{number}").read_text().splitlines()
        typical, p99 = medians([list(map(float, line.split())) for line in lines])

        def add(name, p50, high, typical=typical):
            samples.setdefault(name, []).append((p50, high, p50 / typical, high / typical))

        add("ib_read_lat -s 4096", typical, p99)
        ladder = load("ladder", number)
        for label in ("present page (the clock)", "anonymous zero fault", "local userfaultfd fault",
                      "READ, verbs"):
            add(label, row(ladder, label)["t_typical"], row(ladder, label)["p99"])
        for label, name in (("remote fault, no eviction", "no_evict"),
                            ("remote fault, 25 % local, reads", "steady"),
                            ("remote fault, 25 % local, half writes", "steady_mixed")):
            report = load(name, number)
            fault = row(report, "remote fault")
            add(label, fault["t_typical"], fault["p99"])
        for stage in load("no_evict", number)["stages"]:
            stages.setdefault(stage["name"], []).append((stage["mean"], stage["p50"], stage["p99"]))
        taken.append(float((out / f"disturbance.{number}").read_text()))
    rows = []
    for name, values in samples.items():
        p50, high, p50_ratio, p99_ratio = medians(values)
        rows.append({"name": name, "p50": p50, "p99": high, "p50_to_ib_read_lat": p50_ratio,
                     "p99_to_ib_read_lat_p50": p99_ratio, "best_p99_to_ib_read_lat_p50": min(v[3] for v in values)})
    floor = statistics.median(read[0] + fault[0] for read, fault in zip(samples["READ, verbs"],
                                                                        samples["local userfaultfd fault"]))
    return {"environment": ladder["environment"], "rounds": rounds, "rows": rows,
            "stages": [dict(zip(("name", "mean", "p50", "p99"), (name, *medians(values))))
                       for name, values in stages.items()],
            "floor_us": floor, "fault_us": statistics.median(v[0] for v in samples["remote fault, no eviction"]),
            "host_took_percent": [min(taken), max(taken)]}


def show(result):
    environment, rows = result["environment"], result["rows"]
    print(f'{environment["date"]}, Linux {environment["kernel"]}, {environment["cpus"]} emulated CPUs, '
          f'commit {environment["commit"]}, medians of {result["rounds"]} rounds of one boot')
    print(f'{"usec":<39}{"p50":>9}{"p99":>9}{"p50/ib":>9}{"p99/ib":>9}{"best":>9}')
    for row in rows:
        print(f'{row["name"]:<39}{row["p50"]:>9.1f}{row["p99"]:>9.1f}{row["p50_to_ib_read_lat"]:>9.2f}'
              f'{row["p99_to_ib_read_lat_p50"]:>9.2f}{row["best_p99_to_ib_read_lat_p50"]:>9.2f}')
    low, high = result["host_took_percent"]
    print(f"the host took {low:.0f} to {high:.0f} % of a guest CPU in gaps above 1 ms"
          + (": the 99th percentiles are the host's, not ours" if high >= 0.5 else ""))
    fault, floor = result["fault_us"], result["floor_us"]
    print(f"fault p50 / (READ p50 + local userfaultfd p50) = {fault:.1f} / {floor:.1f} = {fault / floor:.2f}")
    print(f'{"stage, no eviction, usec":<39}{"mean":>9}{"p50":>9}{"p99":>9}')
    for stage in result["stages"]:
        print(f'{stage["name"]:<39}' + "".join(f"{'-' if stage[key] is None else round(stage[key], 1):>9}"
                                               for key in ("mean", "p50", "p99")))


if __name__ == "__main__":
    lab_result = of_rounds(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
    (pathlib.Path(sys.argv[1]) / "lab_fault.json").write_text(json.dumps(lab_result))
    show(lab_result)
