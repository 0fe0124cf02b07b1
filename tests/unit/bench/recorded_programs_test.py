#!/usr/bin/env python3
"""recorded_programs_test.py REPLAY TRACES_DIR: READs of the pager's replacement policy, with FIFO as the yardstick."""
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
MOST_MEAN = 0.90       # READs / those of FIFO with the whole budget: geometric mean
MOST = 1.35            # and of each one


def reads_to_fifo(trace, share):
    done = subprocess.run([REPLAY, trace, "--local", str(share), "--output", "json"], capture_output=True, text=True,
                          check=True)
    policies = {each["policy"]: each for each in json.loads(done.stdout)[0]["policies"]}
    return policies["pager"]["reads_to_fifo"]


class RecordedPrograms(unittest.TestCase):
    def test_need_few_reads(self):
        self.assertGreaterEqual(len(TRACES), 6)
        ratios = {}
        with tempfile.NamedTemporaryFile() as file:
            for trace in TRACES:
                file.truncate(0)
                file.seek(0)
                file.write(lzma.decompress(trace.read_bytes()))
                file.flush()
                for share in SHARES:
                    ratios[trace.name.split(".")[0], share] = reads_to_fifo(file.name, share)
        print("READs / FIFO's" + "".join(f"{share:>7} %" for share in SHARES))
        for name in dict.fromkeys(name for name, _ in ratios):
            print(f"{name:14}" + "".join(f"{ratios[name, share]:9.3f}" for share in SHARES))
        mean = math.exp(sum(math.log(ratio) for ratio in ratios.values()) / len(ratios))
        print(f"{'mean':14}{mean:9.3f}")
        self.assertLessEqual(mean, MOST_MEAN)
        self.assertLessEqual(max(ratios.values()), MOST)


if __name__ == "__main__":
    unittest.main(verbosity=2)
