"""Bytes that change in a node's memory behind its back are found, and never reach the program."""
import os
import struct
import subprocess
import unittest

from cluster import BUILD, FARPAGE, MIB, PATIENCE, EndToEnd, replace_engine, wait_until

PROGRAM = os.path.join(BUILD, "tests", "stored_pages")
MAGIC = 0x7365676170726166
PAGE = 4096
PAGES = 32 * MIB // PAGE
HEAD = struct.Struct("<QQ")
AT = 2000  # of a page: the byte that is changed


def word_of(number):
    """At that place, when it is right (programs/stored_pages.c, version 0)."""
    return (number * PAGE // 8 + AT // 8) * 0x9E3779B97F4A7C15 % (1 << 64)


class NodeMemory:
    """The pages of the program in the memory of a node's process."""

    def __init__(self, node):
        self.pid = node.pid

    def areas(self):
        with open(f"/proc/{self.pid}/maps", encoding="utf-8") as maps:
            for line in maps:
                addresses, access, _, device, _, *name = line.split(maxsplit=5)
                first, end = (int(part, 16) for part in addresses.split("-"))
                if access.startswith("rw") and end - first >= MIB and not (name and name[0].startswith("[")):
                    yield first, end

    def pages(self):
        """Number, address and bytes of each page that is stored."""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            for first, end in self.areas():
                for start in range(first, end, MIB):
                    memory.seek(start)
                    part = memory.read(min(MIB, end - start))
                    for at in range(0, len(part), PAGE):
                        magic, number = HEAD.unpack_from(part, at)
                        if magic == MAGIC and number < PAGES:
                            yield number, start + at, part[at : at + PAGE]

    def corrupt(self):
        """Flips a bit of each page. Returns their numbers, with the address of each."""
        changed = {}
        with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
            for number, address, page in self.pages():
                memory.seek(address + AT)
                memory.write(bytes([page[AT] ^ 4]))
                changed[number] = address
        return changed

    def bytes_at(self, addresses):
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            found = {}
            for number, address in addresses.items():
                memory.seek(address + AT)
                found[number] = memory.read(1)
            return found


class Checksums(EndToEnd):
    def start(self, transport, replicas=1, *more, nodes=None):
        self.start_coordinator()
        self.nodes = [self.start_node(f"node-{i + 1}", "--slab", "2M", lend="64M", transports=transport)
                      for i in range(nodes or replicas)]
        self.program = self.start_run(
            [PROGRAM, str(PAGES)], local="8M", stdin=subprocess.PIPE,
            options=["--transport", transport, "--replicas", str(replicas), "--slab", "2M",
                     "--fault-deadline", "20s", *more])
        self.expect("ready")

    def expect(self, line):
        self.assertEqual(self.program.popen.stdout.readline().decode().strip(), line, self.program.log())

    def ask(self, command):
        """Of a `read` or `child`: pages that are right, wrong, and SIGBUS."""
        self.program.send(command.encode() + b"\n")
        words = self.program.popen.stdout.readline().split()
        self.assertEqual(words[::2], [b"right", b"wrong", b"bus"], self.program.log())
        return tuple(int(word) for word in words[1::2])

    def end(self):
        status, _ = self.program.finish_with(b"")
        self.assertEqual(status, 0, self.program.log())
        return self.stats()

    # ---- one replica ----

    def one_replica_is_sigbus(self, transport):
        """Each page that is read from the node is found, and the program is told."""
        self.start(transport)
        memory = NodeMemory(self.nodes[0])
        corrupted = len(memory.corrupt())
        self.assertGreater(corrupted, PAGES // 2)
        right, wrong, bus = self.ask("read")
        self.assertEqual(wrong, 0)
        self.assertEqual(right + bus, PAGES)
        self.assertGreater(bus, PAGES - 8 * MIB // PAGE - 512, "the others were here")
        stats = self.end()
        self.assertEqual(stats["faults"]["failed"], bus)
        self.assertGreaterEqual(stats["wrong_read"], bus)
        self.assertIn("no replica has the bytes that were written there", self.program.log())
        self.assertIn("wrong_page page=", self.program.log())

    def test_one_replica_is_sigbus_over_shm(self):
        self.one_replica_is_sigbus("shm")

    def test_one_replica_is_sigbus_over_tcp(self):
        self.one_replica_is_sigbus("tcp")

    def test_without_checksums_wrong_bytes_are_read(self):
        """Which shows that the other tests change what is read."""
        self.start("shm", 1, "--checksums", "off")
        NodeMemory(self.nodes[0]).corrupt()
        right, wrong, bus = self.ask("read")
        self.assertEqual((right + wrong, bus), (PAGES, 0))
        self.assertGreater(wrong, PAGES // 2)
        self.assertEqual(self.end()["wrong_read"], 0)

    def test_a_forked_child_finds_it(self):
        """In its parent's pages."""
        self.start("shm", 1, "--fork", "share")
        NodeMemory(self.nodes[0]).corrupt()
        right, wrong, bus = self.ask("child")
        self.assertEqual((right + bus, wrong), (PAGES, 0))
        self.assertGreater(bus, PAGES // 2)
        self.end()

    def test_the_successor_of_a_killed_engine_finds_it(self):
        """Of what the dead engine has written."""
        self.start("tcp")
        NodeMemory(self.nodes[0]).corrupt()
        replace_engine(self.program.pid)
        right, wrong, bus = self.ask("read")
        self.assertEqual((right + bus, wrong), (PAGES, 0))
        self.assertGreater(bus, PAGES // 2)
        self.end()

    # ---- two replicas ----

    def two_replicas_are_not_noticed(self, transport):
        """The other replica answers, and what was wrong is written again."""
        self.start(transport, 2)
        first, second = (NodeMemory(node) for node in self.nodes)
        for memory in (first, second):
            corrupted = memory.corrupt()
            before = memory.bytes_at(corrupted)
            self.assertEqual(self.ask("read"), (PAGES, 0, 0), self.program.log())
            wait_until(lambda: memory.bytes_at(corrupted) != before, "some are written again")
            # The others, which were read from the other node: it must be right when that is changed.
            self.write_all_again()
        stats = self.end()
        self.assertEqual(stats["faults"]["failed"], 0)
        self.assertGreater(stats["wrong_read"], 1000)
        self.assertGreater(stats["pages_mended"], 0)
        self.assertEqual(stats["replicas_lost"], 0)

    def write_all_again(self):
        self.program.send(b"write 1\n")
        self.expect("written")
        self.program.send(b"write 2\n")
        self.expect("written")

    def test_two_replicas_are_not_noticed_over_shm(self):
        self.two_replicas_are_not_noticed("shm")

    def test_two_replicas_are_not_noticed_over_tcp(self):
        self.two_replicas_are_not_noticed("tcp")

    def test_a_repair_copies_no_wrong_page(self):
        """From a damaged node, which is drained."""
        self.start("tcp", 2, "--repair-rate", "max", nodes=3)
        corrupted = NodeMemory(self.nodes[0]).corrupt()
        self.assertGreater(len(corrupted), PAGES // 3)
        subprocess.run([FARPAGE, "drain", "node-1", "--coordinator", self.url], check=True, timeout=PATIENCE,
                       stdout=subprocess.DEVNULL)
        stored = 0
        for node in self.nodes[1:]:
            for number, _, page in NodeMemory(node).pages():
                self.assertEqual(page[AT : AT + 8], word_of(number).to_bytes(8, "little"), number)
                stored += 1
        self.assertGreater(stored, PAGES)
        self.assertEqual(self.ask("read"), (PAGES, 0, 0), self.program.log())
        self.end()

    def await_rounds_without_a_find(self):
        """What it finds it mends, or finds again in the next round."""
        found, read = -1, 0

        def is_over():
            nonlocal found, read
            now, pages = self.counter('farpage_wrong_pages_total{found="scrub"}'), self.counter("farpage_scrubbed_pages_total")
            if now != found:
                found, read = now, pages
            return found > 0 and pages > read + 3 * 2 * PAGES
        wait_until(is_over, "all are written again")

    def scrubber_mends_all(self, transport):
        """Without a READ of the program: then the other replica may be damaged."""
        self.start(transport, 2, "--scrub", "256M")
        for node in self.nodes:
            self.assertGreater(len(NodeMemory(node).corrupt()), PAGES // 2)
            self.await_rounds_without_a_find()
        self.assertEqual(self.ask("read"), (PAGES, 0, 0), self.program.log())
        stats = self.end()
        self.assertEqual(stats["wrong_read"], 0)
        self.assertGreater(stats["wrong_scrubbed"], PAGES)
        self.assertEqual(stats["replicas_lost"], 0)

    def test_scrubber_mends_all_over_shm(self):
        self.scrubber_mends_all("shm")

    def test_scrubber_mends_all_over_tcp(self):
        self.scrubber_mends_all("tcp")


if __name__ == "__main__":
    unittest.main()
