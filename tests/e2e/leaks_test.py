"""The search for what is left behind finds it."""
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import TestCase

import leaks
from cluster import Process, wait_until

# Opens descriptors and starts threads when it is told to.
HOLDER = """
import os, sys, threading
print("ready", flush=True)
sys.stdin.readline()
kept = [os.pipe() for _ in range(10)]
for _ in range(7):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("holds", flush=True)
sys.stdin.readline()
"""


class Leaks(TestCase):
    def start(self, *command, environment=None):
        folder = tempfile.TemporaryDirectory(prefix="farpage-e2e-")
        self.addCleanup(folder.cleanup)
        process = Process(command, os.path.join(folder.name, "log"), environment, stdin=subprocess.PIPE)
        self.addCleanup(process.popen.stdin.close)
        self.addCleanup(process.end)
        return process

    def test_descriptors_and_threads_are_found(self):
        process = self.start(sys.executable, "-c", HOLDER)
        self.assertEqual(process.popen.stdout.readline(), b"ready\n")
        before = leaks.Held(process.pid)
        self.assertEqual(leaks.Held(process.pid).more_than(before, 0, 0), "")
        process.send(b"\n")
        self.assertEqual(process.popen.stdout.readline(), b"holds\n")
        now = leaks.Held(process.pid)
        self.assertRegex(now.more_than(before, 19, 7), r"^\d+ descriptors, \d+ before; new: .*pipe:\[N\]': 20")
        self.assertRegex(now.more_than(before, 20, 6), r"^8 threads, 1 before")
        self.assertEqual(now.more_than(before, 20, 7), "")

    def test_files_are_found(self):
        before = leaks.Before()
        for folder, prefix in (("/dev/shm", "farpage-planted-"), ("/tmp", "farpage-run-999999999-")):
            with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix) as file:
                self.assertIn(f"left behind: {file.name}", before.findings("NO=BODY", {999999999}))
        with tempfile.NamedTemporaryFile(dir="/tmp", prefix=f"farpage-run-{os.getpid()}-") as file:
            self.assertNotIn(f"left behind: {file.name}", before.findings("NO=BODY", {os.getpid()}))

    def test_processes_are_found(self):
        before = leaks.Before()
        marker = f"LEAKS_TEST={os.getpid()}"
        process = self.start("sleep", "600", environment=dict([marker.split("=")]))
        expected = f"still runs: {process.pid} sleep 600 "
        wait_until(lambda: expected in before.findings(marker, {}), "it is found")
        process.end()
        self.assertNotIn(expected, before.findings(marker, {}))


if __name__ == "__main__":
    unittest.main()
