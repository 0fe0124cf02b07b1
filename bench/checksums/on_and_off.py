#!/usr/bin/env python3
"""Random touches with checksums and without, in turn: ratios of their rates and fault times.

  on_and_off.py BUILD [--transport shm] [--rounds 9] [--duration 3s] [--access mixed] [-- MORE...]

MORE are options of `farpage bench fault` for the first of the two only, in place of --checksums on
(such as --scrub 4M: then both have checksums).
"""
import argparse
import json
import statistics
import subprocess


def measure(options, more):
    command = [f"{options.build}/farpage", "bench", "fault", "--transport", options.transport, "--size", options.size,
               "--local", options.local, "--access", options.access, "--duration", options.duration,
               "--output", "json", *more]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    report = json.loads(output)
    fault = next(stage for stage in report["stages"] if stage["name"] == "touch -> resumed")
    return report["figures"]["touches_per_s"], fault["p50"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--size", default="256M")
    parser.add_argument("--local", default="64M")
    parser.add_argument("--access", default="mixed")
    parser.add_argument("--duration", default="3s")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("more", nargs="*")
    options = parser.parse_args()
    first = options.more or ["--checksums", "on"]
    second = [] if options.more else ["--checksums", "off"]
    rates, times = [], []
    for number in range(options.rounds):
        order = [(0, first), (1, second)]
        measured = {}
        for which, more in order if number % 2 == 0 else reversed(order):
            measured[which] = measure(options, more)
        rates.append(measured[0][0] / measured[1][0])
        times.append(measured[0][1] / measured[1][1])
        print(f"round {number + 1}: {measured[0][0]:.0f} and {measured[1][0]:.0f} touches/s, p50 "
              f"{measured[0][1]:.1f} and {measured[1][1]:.1f} us", flush=True)
    for name, ratios in (("touches/s", rates), ("fault p50", times)):
        print(f"{name}: median of the ratios {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
