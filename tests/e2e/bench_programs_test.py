"""`./dev bench programs`, with a hundredth of the sizes and less."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from cluster import BUILD, EndToEnd

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare" / "programs.py"
NAMES = ["sort", "sqlite", "redis", "memcached", "btree", "join", "kmeans", "scan", "matrix", "compile", "xz", "java",
         "graph"]
TWICE = {"redis", "memcached"}  # GETs and SETs


def sanitized():
    """farpage refuses programs with a sanitizer, and some of these are built by us."""
    return re.search("^FARPAGE_SANITIZE:[A-Z]+=.", (pathlib.Path(BUILD) / "CMakeCache.txt").read_text(), re.M)


@unittest.skipIf(os.geteuid() != 0, "memory control groups take root")
class BenchPrograms(EndToEnd):
    def bench(self, *words):
        done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return done.stdout

    def measure(self, *names, scale="0.01"):
        """Each program gives the plain run's output in far memory, or the script fails."""
        out, page = self.path("samples.json"), self.path("page.html")
        text = self.bench(*names, "--scale", scale, "--rounds", "1", "--shares", "50", "--systems", "shm", "--json", out,
                          "--html", page)
        samples = json.loads(pathlib.Path(out).read_text())["samples"]
        self.assertEqual([(sample["program"], sample["system"]) for sample in samples],
                         [(name, system) for name in names for system in ("plain", "farpage shm")])
        for sample in samples:
            self.assertEqual(list(sample["rates"]), ["GET", "SET"] if sample["program"] in TWICE else ["run"])
            if sample["system"] != "plain":
                self.assertGreater(sample["pages_in"], 0, sample)
                self.assertGreater(sample["pages_out"], 0, sample)
                self.assertLess(sample["local_bytes"], sample["peak_bytes"])
        self.assertIn(f"at 50 %: {len(names)} programs", text)
        self.assertEqual(pathlib.Path(page).read_text().count("<svg viewBox=\"0 0 940"), 1)
        self.assertEqual(self.bench("--from", out), text)

    def test_far_memory_under_foreign_programs(self):
        self.measure("sort", "memcached")

    def test_all_programs(self):
        if sanitized():
            self.skipTest("a build with a sanitizer")
        self.measure(*[name for name in NAMES if name != "xz"])
        self.measure("xz", scale="0.005")  # its tables are large whatever it compresses

    def test_unknown_programs_are_refused(self):
        done = subprocess.run([sys.executable, SCRIPT, "tetris"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no program tetris (sort, ", done.stderr)


if __name__ == "__main__":
    unittest.main()
