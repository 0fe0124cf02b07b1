#!/usr/bin/env python3
"""The table of lab_fault.sh: medians over the rounds, and each against ib_read_lat of its round, the median
of three runs.

best: the round with the lowest 99th percentile against ib_read_lat, the one that the host disturbed least.
"""
import json
import pathlib
import statistics
import sys

out, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])


def load(name, number):
    return json.loads((out / f"{name}.{number}.json").read_text())


def row(report, name):
    return next(r for r in report["rows"] if r["name"] == name)


samples = {}  # name -> [(p50, p99, p50 / ib_read_lat, p99 / ib_read_lat)]
stages = {}  # name -> [(mean, p50)]
for number in range(1, rounds + 1):
    lines = (out / f"perftest.{number}").read_text().splitlines()
    typical, p99 = (statistics.median(map(float, column)) for column in zip(*map(str.split, lines)))

    def add(name, p50, high):
        samples.setdefault(name, []).append((p50, high, p50 / typical, high / typical))

    add("ib_read_lat -s 4096", typical, p99)
    ladder = load("ladder", number)
    for label in ("present page (the clock)", "anonymous zero fault", "local userfaultfd fault",
                  "READ, verbs"):
        add(label, row(ladder, label)["t_typical"], row(ladder, label)["p99"])
    for label, name in (("remote fault, no eviction", "no_evict"),
                        ("  25 % local, reads", "steady"),
                        ("  25 % local, half writes", "steady_mixed")):
        report = load(name, number)
        fault = row(report, "remote fault")
        add(label, fault["t_typical"], fault["p99"])
    for stage in load("no_evict", number)["stages"]:
        stages.setdefault(stage["name"], []).append((stage["mean"], stage["p50"], stage["p99"]))

environment = ladder["environment"]
print(f'{environment["date"]}, Linux {environment["kernel"]}, {environment["cpus"]} emulated CPUs, '
      f'commit {environment["commit"]}, medians of {rounds} rounds of one boot')
print(f'{"usec":<28}{"p50":>9}{"p99":>9}{"p50/ib":>9}{"p99/ib":>9}{"best":>9}')
for name, values in samples.items():
    medians = [statistics.median(column) for column in zip(*values)]
    best = min(value[3] for value in values)
    print(f"{name:<28}{medians[0]:>9.1f}{medians[1]:>9.1f}{medians[2]:>9.2f}{medians[3]:>9.2f}{best:>9.2f}")
taken = [float((out / f"disturbance.{n}").read_text()) for n in range(1, rounds + 1)]
print(f"the host took {min(taken):.0f} to {max(taken):.0f} % of a guest CPU in gaps above 1 ms"
      + (": the 99th percentiles are the host's, not ours" if max(taken) >= 0.5 else ""))
floor = statistics.median(a[0] + b[0] for a, b in zip(samples["READ, verbs"],
                                                      samples["local userfaultfd fault"]))
fault = statistics.median(v[0] for v in samples["remote fault, no eviction"])
print(f"fault p50 / (READ p50 + local userfaultfd p50) = {fault:.1f} / {floor:.1f} = {fault / floor:.2f}")
print(f'{"stage, no eviction, usec":<36}{"mean":>9}{"p50":>9}{"p99":>9}')
for name, values in stages.items():
    mean, p50, p99 = (statistics.median(column) for column in zip(*values))
    print(f"{name:<36}{mean:>9.1f}{p50:>9.1f}{p99:>9.1f}")
