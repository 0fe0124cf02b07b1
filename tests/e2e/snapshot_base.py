"""What the tests of images and of guests that are restored from them have in common.

The VMM is tests/e2e/programs/restored_guest.cc: it hands its memory over as Firecracker does, touches
it, and checks each byte against the file.
"""
import json
import mmap
import os
import random
import socket
import subprocess

from cluster import BUILD, FARPAGE, MIB, EndToEnd, Process, Service, wait_until

GUEST = os.path.join(BUILD, "tests", "restored_guest")
PAGE = 4096


class SnapshotTest(EndToEnd):
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
        return {image["name"]: image for image in json.loads(self.get("/v1/images"))["images"]}

    def serve(self, image="vm", *more, name="vm.sock", cache=64 * MIB):
        self.socket = self.path(name)
        self.stats_file = self.socket + ".json"
        return self._owned(Service(
            ["serve", "--image", image, "--socket", self.socket, "--coordinator", self.url,
             "--cache", str(cache), "--stats-file", self.stats_file, *more], self._log("serve")))

    def start_requests(self, folder):
        """A snapshot pager that is asked for its sockets."""
        self.stats_file = self.path("serve.json")
        self.server = self._owned(Service(
            ["serve", "--socket-dir", folder, "--coordinator", self.url, "--stats-file", self.stats_file],
            self._log("serve")))

    def ask(self, folder, text):
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(os.path.join(folder, "control.sock"))
            control.sendall((text if isinstance(text, str) else json.dumps(text)).encode() + b"\n")
            return json.loads(control.makefile().readline())

    def guest(self, file, *more):
        """Restores a guest and touches it: its figures."""
        return self.finish_guest(self.start_process([GUEST, self.socket, file, *more]))

    def finish_guest(self, process):
        status, output = process.finish(120)
        self.assertEqual(status, 0, process.log())
        return json.loads(output.splitlines()[-1])

    def waiting_guest(self, file, *more):
        """One that has been restored and has touched nothing yet."""
        process = self._owned(Process([GUEST, self.socket, file, "--wait", *more], self._log("guest"),
                                      stdin=subprocess.PIPE))
        self.assertEqual(process.popen.stdout.readline(), b"restored\n", process.log())
        return process

    def let_touch(self, process):
        status, output = process.finish_with(b"\n", 120)
        self.assertEqual(status, 0, process.log())
        return json.loads(output)

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

    def farpage_process(self, *arguments):
        return self.start_process([FARPAGE, *arguments, "--coordinator", self.url])

    def start(self, nodes=1, image_options=(), serve_options=(), size=16 * MIB, lend=512 * MIB, cache=64 * MIB,
              transport="tcp", **shape):
        """A cluster, an image `vm` and its snapshot pager; the image's file."""
        self.coordinator, self.nodes = self.start_cluster(nodes=nodes, transport=transport, lend=str(lend))
        file = self.make_file("guest.mem", size, **shape)
        self.pushed = self.push(file, "vm", *image_options)
        self.server = self.serve("vm", *serve_options, cache=cache)
        return file

    def expect_right(self, figures, pages):
        self.assertEqual((figures["pages"], figures["wrong"], figures["sigbus"]), (pages, 0, 0))

    def log_has(self, text):
        wait_until(lambda: text in self.server.log(), f"the log has '{text}'")

    def memory_of_node(self, node):
        """The descriptors of a node's slabs, as paths."""
        folder = f"/proc/{node.pid}/fd"
        paths = [f"{folder}/{fd}" for fd in os.listdir(folder)]
        return [path for path in paths if os.readlink(path).startswith("/memfd:") and os.path.getsize(path) >= 2 * MIB]

    def damage(self, node, content, offset=0, alignment=PAGE, start=0):
        """Changes one byte in the memory of a node: at this offset from the content."""
        for path in self.memory_of_node(node):
            with open(path, "r+b", buffering=0) as slab:
                with mmap.mmap(slab.fileno(), 0) as bytes_of_slab:
                    at = bytes_of_slab.find(content, start)
                    while at >= 0 and (at + offset) % alignment != 0:
                        at = bytes_of_slab.find(content, at + 1)
                    if at >= 0:
                        bytes_of_slab[at + offset] ^= 1
                        return
        self.fail("that is not in the node's memory")

    def noise_page(self, file):
        """The number and the bytes of a page of noise."""
        with open(file, "rb") as memory:
            for number in range(os.path.getsize(file) // PAGE):
                content = memory.read(PAGE)
                if any(content):
                    return number, content
        self.fail("there is none")

    def need_huge_pages(self, size):
        """So much in pages of 2 MiB until the end of the test, which is skipped where that cannot be."""
        pool = "/proc/sys/vm/nr_hugepages"

        def resize(pages):
            with open(pool, "w", encoding="ascii") as file:
                file.write(str(pages))
        with open(pool, encoding="ascii") as file:
            before = int(file.read())
        try:
            resize(before + size // (2 * MIB))
        except OSError as error:
            self.skipTest(f"vm.nr_hugepages: {error.strerror}")
        self.addCleanup(resize, before)
        with open(pool, encoding="ascii") as file:
            if int(file.read()) < before + size // (2 * MIB):
                self.skipTest(f"this host has no {size >> 20} MiB that are free as pages of 2 MiB")
