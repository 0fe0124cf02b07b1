#!/usr/bin/env python3
"""`farpage page-server` and a client that speaks criu's protocol (docs/protocol.md, "Page server of criu").

The checkpoints are made here, with the files that the page server looks at. tests/lab/run/criu.py has
the real criu.
"""
import json
import os
import random
import shutil
import signal
import socket
import struct
import unittest

from cluster import PATIENCE, Service, wait_until
from snapshot_base import PAGE, SnapshotTest
from verifier import scaled

LAZY, PRESENT = 2, 4
GET, CLOSE, ANSWER = 7, 0x1023, 6 | PRESENT << 16


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def record(*fields):
    """Numbers of a protobuf message, with its length."""
    message = b"".join(varint(number << 3) + varint(value) for number, value in fields)
    return struct.pack("<I", len(message)) + message


class Client:
    """As criu lazy-pages: version 3 (narrow) or 4.2 (wide)."""

    def __init__(self, port, wide=False):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.wide = wide

    def message(self, command, pages, address, process):
        return struct.pack("<IxxxxQQQ" if self.wide else "<IIQQ", command, pages, address, process)

    def ask(self, process, address, pages):
        self.socket.sendall(self.message(GET, pages, address, process))

    def receive(self, size):
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def answer(self, process, address):
        """The pages of the next answer, which must be that."""
        size = 32 if self.wide else 24
        command, pages, *rest = struct.unpack("<IxxxxQQQ" if self.wide else "<IIQQ", self.receive(size))
        assert (command, rest) == (ANSWER, [address, process]), (command, pages, rest)
        return self.receive(pages * PAGE)

    def get(self, process, address, pages):
        """All of them, however often it takes."""
        content = b""
        while len(content) < pages * PAGE:
            at = address + len(content)
            self.ask(process, at, pages - len(content) // PAGE)
            content += self.answer(process, at)
        return content

    def has_answer(self):
        self.socket.setblocking(False)
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.socket.settimeout(PATIENCE)

    def end(self):
        """The status that the server answers."""
        self.socket.sendall(self.message(CLOSE, 0, 0, 0))
        status = struct.unpack("<i", self.receive(4))[0]
        self.socket.close()
        return status


class PageServer(SnapshotTest):
    def make_checkpoint(self, processes=2, seed=1):
        """A folder as criu dump leaves it; self.memory has the pages that are asked for."""
        noise = random.Random(seed)
        folder = self.path(f"dump-{seed}")
        os.mkdir(folder)
        self.memory = {}  # (process, address): the bytes of a range
        for number in range(processes):
            process = 100 + 7 * number
            ranges = [record((1, number + 1))]
            address = 0x400000
            with open(f"{folder}/pages-{number + 1}.img", "wb") as pages:
                for kind in [PRESENT, PRESENT | LAZY, PRESENT, *[PRESENT | LAZY] * 20]:
                    count = noise.choice([1, 2, 3, 65, 300])
                    content = b"".join(bytes(PAGE) if noise.random() < 0.2 else noise.randbytes(PAGE)
                                       for _ in range(count))
                    pages.write(content)
                    ranges.append(record((1, address), (2, count), (4, kind)))
                    if kind & LAZY:
                        self.memory[process, address] = content
                    address += (count + noise.choice([0, 1, 1000])) * PAGE
            with open(f"{folder}/pagemap-{process}.img", "wb") as file:
                file.write(struct.pack("<II", 0x54564319, 0x56084025) + b"".join(ranges))
        with open(f"{folder}/inventory.img", "wb") as file:
            file.write(b"inventory")
        return folder

    def serve_checkpoint(self, *more, nodes=1, push=(), transport="tcp"):
        self.coordinator, self.nodes = self.start_cluster(nodes=nodes, transport=transport)
        folder = self.make_checkpoint()
        self.pushed = self.push(folder, "dump", "--without-pages", self.path("rest"), *push)
        shutil.rmtree(folder)
        self.server = self.start_server(*more)

    def start_server(self, *more, image="dump"):
        return self._owned(Service(["page-server", "--image", image, "--port", "0", "--coordinator", self.url, *more],
                                   self._log("page-server")))

    def client(self, wide=False):
        client = Client(self.server.ready["port"], wide)
        self.addCleanup(client.socket.close)
        return client

    def stop(self):
        """SIGTERM; what the server has counted."""
        self.server.kill(signal.SIGTERM)
        status, _ = self.server.finish()
        self.assertEqual(status, 0, self.server.log())
        return json.loads(self.server.log().rsplit("stats=", 1)[1].splitlines()[0])

    def expect_all_right(self, client, seed=1):
        """All of the memory, in requests of random sizes."""
        noise = random.Random(seed)
        for (process, address), content in noise.sample(sorted(self.memory.items()), len(self.memory)):
            at = 0
            while at < len(content):
                pages = min(noise.choice([1, 1, 64, 1024]), (len(content) - at) // PAGE)
                self.assertEqual(client.get(process, address + at, pages), content[at:at + pages * PAGE])
                at += pages * PAGE

    def some_page(self):
        """Process, address and bytes of a page that is not zeros."""
        for (process, address), content in self.memory.items():
            for at in range(0, len(content), PAGE):
                if any(content[at:at + PAGE]):
                    return process, address + at, content[at:at + PAGE]
        self.fail("there is none")

    def test_memory_of_a_checkpoint_is_served_byte_by_byte(self):
        self.serve_checkpoint()
        ready = self.server.ready
        pages = sum(map(len, self.memory.values())) // PAGE
        self.assertEqual((ready["event"], ready["image"], ready["processes"], ready["pages"]),
                         ("ready", "dump", 2, pages))
        client = self.client()
        self.expect_all_right(client)
        self.assertEqual(client.end(), 0)
        stats = self.stop()
        zeros = sum(content[at:at + PAGE] == bytes(PAGE) for content in self.memory.values()
                    for at in range(0, len(content), PAGE))
        self.assertEqual((stats["pages"], stats["zero_pages"]), (pages, zeros))
        self.assertEqual((stats["clients"], stats["broken_clients"], stats["wrong_pages"]), (1, 0, 0))
        self.assertIn("client_served", self.server.log())

    def test_rest_has_the_other_pages_and_files(self):
        self.serve_checkpoint()
        self.assertEqual(sorted(os.listdir(self.path("rest"))),
                         ["inventory.img", "pagemap-100.img", "pagemap-107.img", "pages-1.img", "pages-2.img"])
        stored = sum(os.path.getsize(self.path(f"rest/pages-{i}.img")) for i in (1, 2))
        index = 1
        self.assertEqual(stored // PAGE + self.pushed["pages"] - index,
                         stored // PAGE + sum(map(len, self.memory.values())) // PAGE)
        self.assertLess(stored, 20 * 300 * PAGE)
        self.farpage("image", "verify", "dump")

    def test_clients_of_newer_versions_are_served(self):
        self.serve_checkpoint()
        client = self.client(wide=True)
        self.expect_all_right(client)
        self.assertEqual(client.end(), 0)

    def test_requests_in_flight_are_answered_in_their_order(self):
        self.serve_checkpoint("--transport", "tcp")
        client = self.client()
        noise = random.Random(3)
        asked = []
        for _ in range(500):
            (process, address), content = noise.choice(sorted(self.memory.items()))
            at = noise.randrange(len(content) // PAGE) * PAGE
            asked.append((process, address + at, content[at:at + PAGE]))
        for process, address, _ in asked:
            client.ask(process, address, 1)
        for process, address, content in asked:
            self.assertEqual(client.answer(process, address), content)
        self.assertEqual(client.end(), 0)

    def test_answer_ends_with_the_memory_that_is_there(self):
        self.serve_checkpoint()
        client = self.client()
        (process, address), content = max(self.memory.items())
        client.ask(process, address, 4095)
        self.assertEqual(client.answer(process, address), content, "the last range, and no more")

    def test_several_restores_at_once_are_served(self):
        self.serve_checkpoint()
        clients = [self.client(wide=number % 2 == 1) for number in range(32)]
        late = self.client()  # waits in the socket until one ends
        for number, client in enumerate(clients):
            process, address, content = self.some_page()
            client.ask(process, address, 1)
            self.assertEqual(client.answer(process, address), content, number)
        late.ask(*self.some_page()[:2], 1)
        self.assertFalse(late.has_answer())
        for client in clients:
            self.assertEqual(client.end(), 0)
        self.assertEqual(late.answer(*self.some_page()[:2]), self.some_page()[2])
        self.expect_all_right(late)
        self.assertEqual(late.end(), 0)
        self.assertEqual(self.stop()["clients"], 33)

    def test_client_that_does_not_read_holds_up_nobody(self):
        self.serve_checkpoint()
        (process, address), content = max(self.memory.items(), key=lambda item: len(item[1]))
        lazy = self.client()
        for _ in range(scaled(60, 200)):
            lazy.ask(process, address, len(content) // PAGE)
        self.expect_all_right(self.client())
        for _ in range(scaled(60, 200)):
            self.assertEqual(lazy.answer(process, address), content)

    def test_connection_that_ends_early_is_reported(self):
        self.serve_checkpoint()
        client = self.client()
        (process, address), content = max(self.memory.items(), key=lambda item: len(item[1]))
        for _ in range(50):
            client.ask(process, address, len(content) // PAGE)
        client.answer(process, address)
        client.socket.close()
        wait_until(lambda: "client_gone" in self.server.log(), "the log tells of it")
        self.expect_all_right(self.client())

    def test_what_is_no_request_ends_the_connection_alone(self):
        self.serve_checkpoint()
        for text in [b"\x16\x03\x01\x02\x00\x01", struct.pack("<IIQQ", 4, 0, 0, 100 << 8 | 1),
                     struct.pack("<IIQQ", GET, 1, 4097, 100), struct.pack("<IIQQ", GET, 0, 4096, 100)]:
            client = self.client()
            client.socket.sendall(text)
            with self.assertRaises((EOFError, ConnectionResetError)):
                client.receive(1)
        self.expect_all_right(self.client())
        log = self.server.log()
        self.assertEqual(log.count("bad_request"), 4, log)
        self.assertIn("--tls", log)
        self.assertIn("OPEN2", log)

    def test_page_of_no_checkpoint_is_never_answered(self):
        self.serve_checkpoint()
        client = self.client()
        client.ask(100, 0x1000, 1)
        wait_until(lambda: "not_answered" in self.server.log(), "the log tells of it")
        client.ask(*self.some_page()[:2], 1)
        self.expect_all_right(self.client())
        self.assertFalse(client.has_answer())
        self.assertIn("process=100 address=0x1000 pages=1", self.server.log())
        client.socket.close()
        wait_until(lambda: "client_gone" in self.server.log(), "the server knows that it is gone")

    def test_wrong_page_is_not_sent_and_a_mended_one_is(self):
        self.serve_checkpoint("--read-deadline", "1s")
        process, address, content = self.some_page()
        self.damage(self.nodes[0], content)
        client = self.client()
        client.ask(process, address, 1)
        wait_until(lambda: "page_lost" in self.server.log(), "the log tells of it")
        other = self.client()
        for (owner, start), memory in self.memory.items():
            if (owner, start) != (process, address):
                self.assertEqual(other.get(owner, start, len(memory) // PAGE), memory)
        self.assertFalse(client.has_answer())
        self.assertIn("wrong_page image=dump", self.server.log())
        changed = bytearray(content)
        changed[0] ^= 1
        self.damage(self.nodes[0], bytes(changed))
        self.assertEqual(client.answer(process, address), content)
        self.assertEqual(client.end(), 0)

    def test_loss_of_one_of_two_nodes_is_not_noticed(self):
        self.serve_checkpoint(nodes=2, push=["--replicas", "2"])
        client = self.client()
        process, address, content = self.some_page()
        self.assertEqual(client.get(process, address, 1), content)
        self.nodes[0].end()
        self.expect_all_right(client)
        self.assertEqual(client.end(), 0)

    def test_pages_come_from_their_new_places_after_a_drain(self):
        self.serve_checkpoint()
        client = self.client()
        process, address, content = self.some_page()
        self.assertEqual(client.get(process, address, 1), content)
        self.start_node("node-2", transports="tcp")
        self.farpage("drain", "node-1")
        self.assertIn("leases_refreshed", self.server.log())
        self.expect_all_right(client)
        self.assertEqual(client.end(), 0)

    def test_coordinator_is_not_needed_once_it_serves(self):
        self.serve_checkpoint()
        self.coordinator.end()
        client = self.client()
        self.expect_all_right(client)
        self.assertEqual(client.end(), 0)

    def test_shared_memory_of_a_node_on_this_host_is_used(self):
        self.serve_checkpoint("--transport", "shm", transport="shm,tcp")
        client = self.client()
        self.expect_all_right(client)
        self.assertEqual(client.end(), 0)

    def test_image_that_is_served_is_not_removed(self):
        self.serve_checkpoint()
        _, errors = self.farpage("image", "remove", "dump", status=1)
        self.assertIn("is being read", errors)
        self.stop()
        self.farpage("image", "remove", "dump")

    def test_sigterm_waits_for_clients(self):
        self.serve_checkpoint()
        client = self.client()
        process, address, content = self.some_page()
        self.assertEqual(client.get(process, address, 1), content)
        self.server.kill(signal.SIGTERM)
        wait_until(lambda: "waits_for_clients=1" in self.server.log(), "it is ending")
        self.expect_all_right(client)
        with self.assertRaises(ConnectionRefusedError):
            self.client()
        self.assertEqual(client.end(), 0)
        self.assertEqual(self.server.finish()[0], 0)

    def test_once_ends_with_its_client(self):
        self.serve_checkpoint("--once")
        client = self.client()
        self.expect_all_right(client)
        self.assertEqual(client.end(), 0)
        self.assertEqual(self.server.finish()[0], 0)
        self.server = self.start_server("--once")
        self.client().socket.close()
        self.assertEqual(self.server.finish()[0], 1)
        self.assertIn("before it had all of its pages", self.server.log())

    def test_wrong_commands_name_the_cure(self):
        self.start_cluster(transport="tcp")
        folder = self.make_checkpoint()
        memory = self.make_file("vm.mem")
        self.push(memory, "vm")
        for status, text, arguments in [
                (2, "no checkpoint of criu", ["page-server", "--image", "vm", "--port", "0"]),
                (1, "no image", ["page-server", "--image", "nothing", "--port", "0"]),
                (2, "--port", ["page-server", "--image", "vm"]),
                (2, "--image: 'a b' is no name", ["page-server", "--image", "a b", "--port", "0"]),
                (2, "--without-pages", ["image", "push", memory, "--name", "x", "--without-pages", self.path("y")]),
                (2, "--base", ["image", "push", folder, "--name", "x", "--base", "vm"]),
                (1, "exists already", ["image", "push", folder, "--name", "x", "--without-pages", folder]),
                (2, "no pagemap-PID.img", ["image", "push", self.folder, "--name", "x"])]:
            with self.subTest(text):
                _, errors = self.farpage(*arguments, status=status)
                self.assertIn(text, errors)
        self.assertEqual(list(self.images()), ["vm"])
        self.assertNotIn("x", os.listdir(self.folder))

    def test_checkpoint_pushed_twice_is_the_same_image(self):
        self.coordinator, self.nodes = self.start_cluster(transport="tcp")
        folder = self.make_checkpoint(processes=6)
        self.push(folder, "first")
        second = self.push(folder, "second", "--without-pages", self.path("rest"))
        images = self.images()
        self.assertEqual(images["first"]["digest"], images["second"]["digest"], "the same pages in the same places")
        self.assertEqual(images["second"]["digest"], second["digest"])


if __name__ == "__main__":
    unittest.main()
