"""Memory that the program places outside of the window is far, too."""
import os
import subprocess
import unittest

from cluster import BUILD, EndToEnd

PROGRAM = os.path.join(BUILD, "tests", "memory_calls")
FORKS = os.path.join(BUILD, "tests", "forks")


class Extents(EndToEnd):
    def run_scenario(self, name, local="16M", options=("--lend", "512M")):
        status, _, log = self.run_far([PROGRAM, name], local=local, options=options)
        self.assertEqual(status, 0, (name, log))
        self.assertEqual(self.stats()["faults"]["failed"], 0)

    def test_ten_thousand_extents(self):
        self.run_scenario("many-extents", options=("--lend", "2G", "--slab", "2M"))
        self.assertGreater(self.stats()["evictions"]["written"], 10_000)

    def test_calls_across_extents(self):
        self.run_scenario("calls-across-extents")

    def test_mremap_across_far_and_local_memory_is_as_without_far_memory(self):
        plain = subprocess.run([PROGRAM, "remap-pieces"], stdout=subprocess.PIPE, check=True)
        status, output, log = self.run_far([PROGRAM, "remap-pieces"], local="2M",
                                           options=["--lend", "512M", "--slab", "2M"])
        self.assertEqual(status, 0, log)
        self.assertEqual(output.decode(), plain.stdout.decode())
        self.assertGreater(self.stats()["evictions"]["written"], 1000)

    def test_extents_come_and_go_while_the_program_forks(self):
        self.run_scenario("extents-come-and-go", local="4M", options=("--lend", "2G", "--slab", "2M"))

    def in_extents(self):
        """The programs' far memory consists of extents whose page numbers are not in order."""
        os.environ["FARPAGE_TEST_EXTENTS"] = "1"
        self.addCleanup(os.environ.pop, "FARPAGE_TEST_EXTENTS")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def test_memory_calls(self):
        self.in_extents()
        for name in ("unmap", "remap", "remap-fixed", "remap-and-keep", "closed-pages",
                     "pageout-and-willneed", "give-up", "sequential", "lock", "direct-io",
                     "ring-buffers", "futexes", "signals", "threads"):
            with self.subTest(name):
                self.run_scenario(name)
                self.assertGreater(self.stats()["evictions"]["written"], 0)

    def test_forks(self):
        self.in_extents()
        for scenario, pages, rounds in (("rounds", 2000, 8), ("nested", 1500, 5),
                                        ("threads", 1500, 8)):
            with self.subTest(scenario):
                status, output, log = self.run_far([FORKS, scenario, str(pages), str(rounds), "7"],
                                                   local="1M", options=("--lend", "2G", "--slab", "2M"))
                self.assertEqual((status, output), (0, b"wrong_pages 0\n"), log)


if __name__ == "__main__":
    unittest.main()
