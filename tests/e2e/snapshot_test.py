#!/usr/bin/env python3
"""Images of guests, and guests that are restored from them (docs/operations.md, "Snapshots").

The VMM is tests/e2e/programs/restored_guest.cc: it hands its memory over as Firecracker does, touches
it, and checks each byte against the file.
"""
import json
import os
import random
import signal
import subprocess
import unittest

from cluster import BUILD, FARPAGE, MIB, EndToEnd, Service, wait_until

GUEST = os.path.join(BUILD, "tests", "restored_guest")
PAGE = 4096


class Snapshot(EndToEnd):
    def make_file(self, name, size=16 * MIB, seed=1, zero_share=0.25, holes=0.25):
        """The memory of a guest: pages of noise, pages of zeros, holes."""
        noise = random.Random(seed)
        path = self.path(name)
        with open(path, "wb") as file:
            file.truncate(size)
            page = 0
            while page < size // PAGE:
                run = noise.randint(1, 200)
                kind = noise.random()
                if kind >= holes:
                    file.seek(page * PAGE)
                    count = min(run, size // PAGE - page)
                    file.write(bytes(count * PAGE) if kind < holes + zero_share else noise.randbytes(count * PAGE))
                page += run
        return path

    def farpage(self, *arguments, status=0):
        done = subprocess.run([FARPAGE, *arguments, "--coordinator", self.url], capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def push(self, file, name="vm", *more):
        output, _ = self.farpage("image", "push", file, "--name", name, "--output", "json", *more)
        return json.loads(output)

    def images(self):
        return {image["name"]: image for image in json.loads(self.farpage("image", "list", "--output", "json")[0])["images"]}

    def serve(self, image="vm", *more, socket="vm.sock"):
        self.socket = self.path(socket)
        self.stats_file = self.path("serve.json")
        return self._owned(Service(
            ["serve", "--image", image, "--socket", self.socket, "--coordinator", self.url, "--cache", "64M",
             "--stats-file", self.stats_file, *more], self._log("serve")))

    def guest(self, file, *more, status=0):
        """Restores a guest and touches it: its figures."""
        process = self.start_process([GUEST, self.socket, file, *more])
        ended, output = process.finish(120)
        self.assertEqual(ended, status, process.log())
        return json.loads(output.splitlines()[-1])

    def stats(self, sessions=None):
        """Of the snapshot pager, after this many guests have ended."""
        def read():
            try:
                with open(self.stats_file, encoding="utf-8") as file:
                    self._stats = json.load(file)
            except FileNotFoundError:
                return False
            return sessions is None or self._stats["sessions"]["ended"] >= sessions
        wait_until(read, f"{sessions} sessions have ended")
        return self._stats

    def test_pushed_image_is_restored_byte_by_byte(self):
        self.start_cluster(transport="tcp")
        file = self.make_file("guest.mem")
        pushed = self.push(file)
        self.assertEqual(pushed["pages"], 4096)
        self.assertGreater(pushed["zero_pages"], 500)
        self.assertEqual(pushed["stored_pages"] + pushed["zero_pages"], 4096)
        self.serve()
        figures = self.guest(file)
        self.assertEqual((figures["pages"], figures["wrong"], figures["sigbus"]), (4096, 0, 0))
        stats = self.stats(1)
        self.assertEqual(stats["faults"]["read"] + stats["faults"]["joined"] + stats["faults"]["cached"],
                         pushed["stored_pages"], stats)
        self.assertEqual(stats["reads"]["wrong_pages"], 0)


if __name__ == "__main__":
    unittest.main()
