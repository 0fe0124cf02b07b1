"""Compressed copies of remote pages answer faults in place of READs, and change no result."""
import unittest

from cluster import MIB
from fork_test import PYTHON
from programs_test import SQL
from verifier import PATIENT, Verifier


class Compressed(Verifier):
    def run_compressed(self, command, local, *options):
        process = self.start_run(command, local=local, options=[*options, *PATIENT])
        status, output = process.finish(240)
        self.assertEqual(status, 0, process.log()[-3000:])
        return output

    def total(self, name):
        return sum(target[name] for target in self.all_stats())

    def test_sqlite_reads_copies_and_gives_the_same_output(self):
        command = [self.program("sqlite3"), ":memory:", SQL]
        expected, peak = self.plain(command)
        self.start_cluster(transport="tcp", lend="1G")
        output = self.run_compressed(command, f"{max(2, peak // 2 // MIB)}M", "--transport", "tcp",
                                     "--compressed", "30%")
        self.assertTrue(output == expected, f"{output[:500]}\n{expected[:500]}")
        self.assertGreater(self.total("compressed_stored"), 1000)
        self.assertGreater(self.total("compressed_hits"), 1000)
        self.assertGreater(self.total("compressed_hits"), 2 * self.total("reads"))
        # Every page is on its node as well.
        self.assertGreaterEqual(self.stats()["evictions"]["written"], self.total("compressed_hits") // 4)

    def test_off_keeps_no_copy(self):
        command = [self.program("sqlite3"), ":memory:", SQL]
        self.start_cluster(transport="tcp", lend="1G")
        self.run_compressed(command, "8M", "--transport", "tcp", "--compressed", "off")
        self.assertEqual(self.total("compressed_stored"), 0)
        self.assertEqual(self.total("compressed_hits"), 0)

    def test_children_of_forks_read_what_their_parents_have_copies_of(self):
        command = [self.program("python3"), "-c", PYTHON]
        expected, peak = self.plain(command)
        self.start_coordinator()
        self.start_node("node-1", "--slab", "2M", transports="tcp")
        output = self.run_compressed(command, self.quarter(peak), "--slab", "2M", "--transport", "tcp",
                                     "--compressed", "50%")
        self.assertTrue(output == expected, f"{output[:500]}\n{expected[:500]}")
        with_hits = [target for target in self.all_stats() if target["compressed_hits"] > 0]
        self.assertGreater(len(with_hits), 1)


if __name__ == "__main__":
    unittest.main()
