#!/usr/bin/env python3
"""recorded_programs_test.py REPLAY TRACES_DIR: READs of the pager's replacement policy, with FIFO as the yardstick,
and demand faults with clusters, compared with streams alone."""
import json
import lzma
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

REPLAY = sys.argv.pop(1)
TRACES = sorted(pathlib.Path(sys.argv.pop(1)).glob("*.trace.xz"))
SHARES = (74, 50, 25)  # percent of the pages in use that may be resident
MOST_MEAN = 0.87       # READs / those of FIFO with the whole budget: geometric mean
MOST = 1.21            # and of each one
MOST_MEAN_FAULTS = 0.79  # with clusters / without: geometric mean
MOST_FAULTS = 1.02       # and of each one
MOST_PAGES = 1.1         # pages that come in with clusters / without, of each one


def ratios_of(trace, share):
    done = subprocess.run([REPLAY, trace, "--local", str(share), "--output", "json"], capture_output=True, text=True,
                          check=True)
    policies = {each["policy"]: each for each in json.loads(done.stdout)[0]["policies"]}
    streams, clusters = policies["streams"], policies["clusters"]
    pages = [each["reads"] + each["pages_ahead"] for each in (streams, clusters)]
    return policies["pager"]["reads_to_fifo"], clusters["reads"] / streams["reads"], pages[1] / pages[0]


def mean_of(ratios):
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))


def print_table(title, ratios):
    print(f"{title:24}" + "".join(f"{share:>7} %" for share in SHARES))
    for name in dict.fromkeys(name for name, _ in ratios):
        print(f"{name:24}" + "".join(f"{ratios[name, share]:9.3f}" for share in SHARES))
    print(f"{'mean':24}{mean_of(ratios.values()):9.3f}")


class RecordedPrograms(unittest.TestCase):
    def test_need_few_reads(self):
        self.assertGreaterEqual(len(TRACES), 6)
        reads, faults, pages = {}, {}, {}
        with tempfile.NamedTemporaryFile() as file:
            for trace in TRACES:
                file.truncate(0)
                file.seek(0)
                file.write(lzma.decompress(trace.read_bytes()))
                file.flush()
                for share in SHARES:
                    key = trace.name.split(".")[0], share
                    reads[key], faults[key], pages[key] = ratios_of(file.name, share)
        print_table("READs / FIFO's", reads)
        print_table("faults: clusters/streams", faults)
        print_table("pages: clusters/streams", pages)
        self.assertLessEqual(mean_of(reads.values()), MOST_MEAN)
        self.assertLessEqual(max(reads.values()), MOST)
        self.assertLessEqual(mean_of(faults.values()), MOST_MEAN_FAULTS)
        self.assertLessEqual(max(faults.values()), MOST_FAULTS)
        self.assertLessEqual(max(pages.values()), MOST_PAGES)


if __name__ == "__main__":
    unittest.main(verbosity=2)
