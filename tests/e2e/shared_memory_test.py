#!/usr/bin/env python3
"""Memory that several processes share, and hand over to `farpage share` (docs/vm.md).

The VMM and its devices are tests/e2e/programs/shared_memory.c: they write pages in turn, and check
each byte of each page against a model.
"""
import json
import os
import signal
import subprocess
import unittest

from cluster import BUILD, MIB, EndToEnd, Process, Service, engine_of, name_of, state_of, wait_until

PROGRAM = os.path.join(BUILD, "tests", "shared_memory")
PAGE = 4096


@unittest.skipIf(os.geteuid() != 0, "a userfaultfd for faults of the kernel needs root")
class SharedMemory(EndToEnd):
    def share(self, *more, local=8 * MIB, transport="shm"):
        self.socket = self.path("vm.sock")
        self.stats_path = self.path("stats.json")
        self.pager = self._owned(Service(
            ["share", "--socket", self.socket, "--local", str(local), "--coordinator", self.url, "--transport", transport,
             "--stats-file", self.stats_path, *more], self._log("share")))

    def start(self, *more, nodes=1, **options):
        transport = options.get("transport", "shm")
        self.cluster = self.start_cluster(nodes=nodes, transport=transport, lend="256M")
        self.share(*more, **options)

    def guest(self, processes=1, pages=8192, rounds=20000, seed=1, options=()):
        arguments = [PROGRAM, self.socket, str(processes), str(pages), str(rounds), str(seed), *options]
        return self._owned(Process(arguments, self._log("guest"), stdin=subprocess.PIPE))

    def expect_right(self, process, checks):
        status, output = process.finish(200)
        self.assertEqual(status, 0, process.log() + self.pager.log())
        figures = json.loads(output.splitlines()[-1])
        self.assertEqual(figures["wrong"], 0, figures)
        self.assertGreaterEqual(figures["checks"], checks, figures)
        return figures

    def expect_pager_ended(self):
        status, _ = self.pager.finish(60)
        self.assertEqual(status, 0, self.pager.log())
        self.assertFalse(os.path.exists(self.socket))

    def expect_far(self, transport):
        self.expect_pager_ended()
        stats = self.stats()
        self.assertGreater(stats["faults"]["remote"] + stats["prefetched_pages"], 1000, stats)
        self.assertGreater(stats["evictions"]["written"], 1000, stats)
        self.assertEqual(stats["faults"]["failed"], 0, stats)
        self.assertEqual(stats["transports"], transport, stats)

    def say(self, process, line):
        self.assertEqual(process.popen.stdout.readline(), line, process.log() + self.pager.log())

    def test_one_process_has_more_memory_than_stays_here(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport):
                self.start(transport=transport)
                self.expect_right(self.guest(), 2 * 20000 + 8192)
                self.expect_far(transport)

    def test_two_processes_see_every_byte(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport):
                self.start("--processes", "2", transport=transport)
                self.expect_right(self.guest(processes=2, options=["--walk"]), 4 * 20000 + 5 * 8192)
                self.expect_far(transport)


if __name__ == "__main__":
    unittest.main()
