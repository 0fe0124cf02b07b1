#!/usr/bin/env python3
"""Images of guests, and guests that are restored from them (docs/operations.md, "Snapshots")."""
import json
import os
import random
import re
import unittest

from cluster import MIB, wait_until
from snapshot_base import GUEST, PAGE, SnapshotTest
from verifier import scaled


class Snapshot(SnapshotTest):
    def test_pushed_image_is_restored_byte_by_byte(self):
        file = self.start()
        self.assertEqual(self.pushed["pages"], 4096)
        self.assertGreater(self.pushed["zero_pages"], 500)
        self.assertEqual(self.pushed["stored_pages"] + self.pushed["zero_pages"], 4096)
        self.expect_right(self.guest(file), 4096)
        faults = self.stats(1)["faults"]
        self.assertEqual(faults["read"] + faults["joined"] + faults["cached"], self.pushed["stored_pages"], faults)
        self.assertEqual(self._stats["reads"]["bytes"] // PAGE,
                         self.pushed["stored_pages"] + 4096 * 16 // PAGE, "each page once, and the map")

    def test_memory_without_content_is_an_image_too(self):
        file = self.start(size=4 * MIB, holes=1)
        self.assertEqual((self.pushed["stored_pages"], self.pushed["zero_pages"]), (0, 1024))
        self.expect_right(self.guest(file), 1024)
        self.assertEqual(self.stats(1)["faults"]["zero"], 1024)
        self.farpage("image", "verify", "vm")

    def test_every_version_of_firecracker_is_understood(self):
        file = self.start(size=4 * MIB)
        for number, shape in enumerate(["v1.1", "v1.7", "v1.12", "v1.15"]):
            self.expect_right(self.guest(file, "--shape", shape, "--regions", str(1 + number % 3)), 1024)

    def test_message_in_parts_and_late_descriptors_are_taken(self):
        file = self.start(size=4 * MIB)
        self.expect_right(self.guest(file, "--send", "slow", "--regions", "2"), 1024)
        self.expect_right(self.guest(file, "--send", "late"), 1024)

    def test_hostile_messages_are_refused_and_others_are_served(self):
        file = self.start(size=4 * MIB)
        region = '{"base_host_virt_addr":%d,"size":%d,"offset":%d}'
        shapes = ["torn", "twice", "nothing", "many", "text:{}", "text:[]", "text:[[[[[[[[[[[[[[[[[[[[",
                  "text:" + "[" + region % (4096, 4096, 1 << 40) + "]",
                  "text:" + "[" + region % (4097, 4096, 0) + "]",
                  "text:" + "[" + region % (4096, 1 << 63, 0) + "]",
                  "text:" + "[" + region % (1 << 20, 8192, 0) + "," + region % ((1 << 20) + 4096, 4096, 1 << 20) + "]",
                  'text:[{"base_host_virt_addr":4096,"size":2097152,"offset":0,"page_size":2097152}]',
                  'text:[{"base_host_virt_addr":2097152,"size":2097152,"offset":0,"page_size":1073741824}]',
                  'text:[{"base_host_virt_addr":-1,"size":4096,"offset":0}]',
                  'text:[{"size":4096,"offset":0}]']
        for shape in shapes:
            with self.subTest(shape):
                process = self.start_process([GUEST, self.socket, file, "--send", shape])
                status, output = process.finish(60)
                self.assertEqual((status, output), (0, b"refused\n"), process.log())
        self.expect_right(self.guest(file), 1024)
        self.assertEqual(self.stats(1)["sessions"]["refused"], len(shapes))

    def test_pages_given_back_are_zeros_while_others_are_placed_ahead(self):
        file = self.start(serve_options=["--prefetch-all"])
        for seed in range(1, 6):
            self.expect_right_steps(file, seed, [])

    def test_pages_given_back_without_events_are_zeros(self):
        file = self.start()
        for seed in range(1, 4):
            self.expect_right_steps(file, seed, ["--no-events"])

    def expect_right_steps(self, file, seed, options):
        figures = self.guest(file, "--steps", "3000", "--seed", str(seed), "--threads", "3", "--regions", "2", *options)
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), f"seed {seed}")

    def test_many_restores_of_one_image_bring_each_page_once(self):
        size = scaled(8, 512) * MIB
        file = self.start(size=size, lend=2 * size + 256 * MIB, cache=size + 64 * MIB)
        guests = scaled(30, 100)
        left = list(range(guests))
        running = []
        while left or running:
            while left and len(running) < 8:
                seed = left.pop()
                running.append(self.start_process([GUEST, self.socket, file, "--seed", str(seed + 1), "--threads", "1"]))
            process = running.pop(0)
            status, output = process.finish(120)
            self.assertEqual(status, 0, process.log())
            self.expect_right(json.loads(output), size // PAGE)
        stats = self.stats(guests)
        touched = self.pushed["stored_pages"] * PAGE
        self.assertLessEqual(stats["reads"]["bytes"], 1.1 * touched + size // PAGE * 16, stats)
        self.assertEqual(stats["faults"]["lost"], 0)

    def test_killed_push_goes_on_where_it_was(self):
        self.start_cluster(transport="tcp", lend="1G")
        size = 256 * MIB
        file = self.make_file("guest.mem", size, zero_share=0, holes=0)
        killed = self.farpage_process("image", "push", file, "--name", "vm")
        wait_until(lambda: self.images().get("vm", {}).get("pages", 0) > 0, "a checkpoint is noted")
        killed.end()
        noted = self.images()["vm"]
        if noted["state"] == "complete":
            self.skipTest("the push was over before it could be killed")
        pushed = self.push(file)
        self.assertGreaterEqual(pushed["resumed_pages"], noted["pages"])
        self.assertGreater(pushed["resumed_pages"], 0)
        self.assertEqual(pushed["stored_pages"], size // PAGE)
        self.assertLess(pushed["written_bytes"], size)
        self.farpage("image", "verify", "vm")
        self.serve("vm")
        self.expect_right(self.guest(file, "--percent", "20"), size // PAGE // 5)

    def test_push_of_another_content_under_a_checkpoint_begins_anew(self):
        self.start_cluster(transport="tcp", lend="1G")
        size = 256 * MIB
        file = self.make_file("guest.mem", size, zero_share=0, holes=0)
        killed = self.farpage_process("image", "push", file, "--name", "vm")
        wait_until(lambda: self.images().get("vm", {}).get("pages", 0) > 0, "a checkpoint is noted")
        killed.end()
        with open(file, "r+b") as memory:
            memory.write(b"other")
        pushed = self.push(file)
        self.assertEqual(pushed["resumed_pages"], 0)
        self.farpage("image", "verify", "vm")
        self.serve("vm")
        self.expect_right(self.guest(file, "--percent", "5"), size // PAGE // 20)

    def test_second_replica_answers_when_a_node_dies(self):
        file = self.start(nodes=2, image_options=["--replicas", "2"])
        waiting = self.waiting_guest(file)
        self.expect_right(self.guest(file, "--percent", "20"), 819)
        self.nodes[0].end()
        self.expect_right(self.let_touch(waiting), 4096)
        self.expect_right(self.guest(file), 4096)
        self.assertEqual(self.stats(3)["faults"]["lost"], 0)

    def test_last_node_that_dies_ends_in_sigbus_within_the_deadline(self):
        file = self.start(serve_options=["--fault-deadline", "1s", "--operation-timeout", "300ms"])
        self.expect_right(self.guest(file, "--percent", "20"), 819)
        self.nodes[0].end()
        figures = self.guest(file, "--percent", "1", "--start", "60", "--threads", "8")
        self.assertEqual(figures["wrong"], 0)
        self.assertGreater(figures["sigbus"], 0)
        self.assertIn("page_lost", self.server.log())
        self.assertEqual(self.stats(2)["faults"]["lost"], figures["sigbus"])

    def test_guests_that_wait_for_one_lost_page_share_its_deadline(self):
        file = self.start(serve_options=["--fault-deadline", "1s", "--operation-timeout", "300ms"], size=MIB, holes=0,
                          zero_share=0)
        guests = [self.waiting_guest(file, "--percent", "1") for _ in range(6)]
        self.nodes[0].end()
        for guest in guests:
            guest.popen.stdin.write(b"\n")
            guest.popen.stdin.flush()
        lost = sum(self.finish_guest(guest)["sigbus"] for guest in guests)
        waits = [int(ms) for ms in re.findall(r"page_lost .*after_ms=(\d+)", self.server.log())]
        self.assertEqual((len(waits), lost > 0), (lost, True), self.server.log())
        self.assertLess(max(waits), 3000, "not one deadline after the other")

    def test_many_threads_that_give_pages_back(self):
        """More faults than are in hand at once, and events that keep all of them from being answered."""
        file = self.start()
        figures = self.guest(file, "--threads", "200", "--steps", "100")
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), figures)

    def test_page_with_wrong_bytes_comes_from_the_other_replica(self):
        file = self.start(nodes=2, image_options=["--replicas", "2"])
        _, content = self.noise_page(file)
        self.damage(self.nodes[0], content)
        self.expect_right(self.guest(file), 4096)
        output, _ = self.farpage("image", "verify", "vm", status=1)
        self.assertEqual(output.count(" 1 bad"), 1, output)
        self.assertEqual(output.count(" 0 bad"), 1, output)

    def test_page_with_wrong_bytes_everywhere_ends_in_sigbus(self):
        file = self.start()
        number, content = self.noise_page(file)
        self.damage(self.nodes[0], content)
        figures = self.guest(file)
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 1))
        self.assertIn(f"wrong_page image=vm page={number} node=node-1", self.server.log())
        self.assertEqual(self.stats(1)["reads"]["wrong_pages"], 1)
        _, errors = self.farpage("image", "verify", "vm", status=1)
        self.assertIn(f"page={number} node=node-1", errors)

    def test_damaged_map_is_not_used(self):
        _, nodes = self.start_cluster(transport="tcp")
        file = self.make_file("guest.mem", 4 * MIB, holes=0, zero_share=0)
        self.push(file)
        # Behind the pages: the entry of page 2 names slot 2, of this image.
        self.damage(nodes[0], (2).to_bytes(8, "little"), offset=-8, alignment=16, start=4 * MIB)
        _, errors = self.farpage("serve", "--image", "vm", "--socket", self.path("s.sock"), status=2)
        self.assertIn("does not have its digest", errors)

    def test_guests_are_restored_without_the_coordinator(self):
        file = self.start()
        self.coordinator.end()
        self.expect_right(self.guest(file), 4096)

    def test_recorded_set_is_placed_ahead_of_the_next_guest(self):
        recorded = self.path("vm.set")
        file = self.start(serve_options=["--recorded-set", recorded])

        def demanded(sessions):
            faults = self.stats(sessions)["faults"]
            return faults["read"] + faults["joined"] + faults["cached"]
        self.expect_right(self.guest(file, "--percent", "30", "--seed", "5"), 1228)
        cold = demanded(1)
        wait_until(lambda: os.path.exists(recorded), "the set is published")
        guest = self.waiting_guest(file, "--percent", "30", "--seed", "6")
        self.log_has("replayed session=2")
        self.expect_right(self.let_touch(guest), 1228)
        self.assertLessEqual(demanded(2) - cold, cold // 10)
        self.assertEqual(self.stats(2)["replayed_pages"], cold)
        # The next snapshot pager has it, too.
        self.server.kill(15)
        self.assertEqual(self.server.finish(60)[0], 0)
        self.server = self.serve("vm", "--recorded-set", recorded, name="next.sock")
        guest = self.waiting_guest(file, "--percent", "30", "--seed", "7")
        self.log_has("replayed session=1")
        self.expect_right(self.let_touch(guest), 1228)
        self.assertLessEqual(demanded(1), cold // 10)

    def test_recorded_set_of_another_image_or_damaged_is_ignored(self):
        recorded = self.path("vm.set")
        with open(recorded, "wb") as file:
            file.write(b"FPSET001" + bytes(3000))
        file = self.start(serve_options=["--recorded-set", recorded])
        self.assertIn("recorded_set_ignored", self.server.log())
        self.expect_right(self.guest(file), 4096)
        self.stats(1)
        wait_until(lambda: os.path.getsize(recorded) != 3008, "a new set is published")

    def test_recorded_set_is_not_changed_by_its_replay(self):
        recorded = self.path("vm.set")
        file = self.start(holes=0, zero_share=0, serve_options=["--recorded-set", recorded])
        self.expect_right(self.guest(file, "--percent", "20", "--seed", "5"), 819)
        self.stats(1)

        def contents():
            with open(recorded, "rb") as file:
                return os.stat(recorded).st_ino, file.read()
        learned = contents()

        def touch_all(name, jobs, *options):
            self.server.kill(15)
            self.assertEqual(self.server.finish(60)[0], 0)
            self.server = self.serve("vm", "--recorded-set", recorded, *options, name=name)
            guest = self.waiting_guest(file)
            wait_until(lambda: self.server.log().count("replayed session=1 ") == jobs, "its pages are placed")
            self.expect_right(self.let_touch(guest), 4096)
            self.stats(1)
        touch_all("all.sock", 2, "--prefetch-all")
        self.assertEqual(self._stats["replayed_pages"], 4096, "each once, whatever job brings it")
        self.assertEqual(contents(), learned, "nobody has waited for a page")
        # Whoever waits for the same pages adds to it, up to half of the image.
        touch_all("waits.sock", 1)
        self.assertIn("recorded_pages=819\n", self.server.log())
        self.assertNotEqual(contents(), learned)
        touch_all("half.sock", 1)
        self.assertIn("recorded_pages=2048\n", self.server.log())

    def test_all_pages_come_without_a_touch(self):
        file = self.start(serve_options=["--prefetch-all"])
        guest = self.waiting_guest(file)
        self.log_has("replayed session=1")
        self.expect_right(self.let_touch(guest), 4096)
        faults = self.stats(1)["faults"]
        self.assertEqual(faults["read"] + faults["joined"] + faults["cached"], 0, faults)

    def test_diffs_are_read_through_their_generations(self):
        self.start_cluster(transport="tcp")
        size = 16 * MIB
        base = self.make_file("base.mem", size)
        self.push(base, "base")
        with open(base, "rb") as file:
            memory = bytearray(file.read())
        changes = random.Random(7)
        for generation in range(1, 4):
            # As a diff snapshot: a sparse file with the pages that were written.
            path = self.path(f"diff-{generation}.mem")
            written = sorted(changes.sample(range(size // PAGE), 200))
            with open(path, "wb") as file:
                file.truncate(size)
                for page in written:
                    content = bytes(PAGE) if changes.random() < 0.2 else changes.randbytes(PAGE)
                    memory[page * PAGE:(page + 1) * PAGE] = content
                    file.seek(page * PAGE)
                    file.write(content)
            pushed = self.push(path, f"g{generation}", "--base", f"g{generation - 1}" if generation > 1 else "base")
            self.assertLessEqual(pushed["stored_pages"], 200)
            self.assertGreater(pushed["base_pages"], 1000)
        whole = self.path("whole.mem")
        with open(whole, "wb") as file:
            file.write(memory)
        self.serve("g3")
        self.expect_right(self.guest(whole), 4096)
        # The digest is that of the content, however it is stored.
        self.assertEqual(self.push(whole, "whole")["digest"], pushed["digest"])
        # A file with all of the memory is compared with the base.
        again = self.push(whole, "again", "--base", "g2", "--holes", "zeros")
        self.assertEqual(again["digest"], pushed["digest"])
        self.assertLessEqual(again["stored_pages"], 200)
        self.farpage("image", "verify", "g3")
        _, errors = self.farpage("image", "remove", "base", status=1)
        self.assertIn("'g1'", errors)

    def test_images_are_listed(self):
        self.start(size=4 * MIB, nodes=2, image_options=["--replicas", "2"])
        second = self.push(self.make_file("diff.mem", 4 * MIB, seed=2), "second", "--base", "vm")
        head, *lines = [line.split() for line in self.farpage("image", "list")[0].splitlines()]
        listed = {line[0]: dict(zip(head, line, strict=True)) for line in lines}
        self.assertEqual(set(listed), {"vm", "second"})
        stored = [listed[name].pop("STORED") for name in ("vm", "second")]
        self.assertEqual(stored, [f"{self.pushed['stored_pages'] * PAGE / MIB:.1f}M", f"{second['stored_pages'] * 4}K"])
        same = {"STATE": "complete", "MEMORY": "4M", "LOST": "0"}
        self.assertEqual(listed["vm"], {"IMAGE": "vm", "BASE": "-", "REPLICAS": "2", "READERS": "1",
                                        "DIGEST": self.pushed["digest"][:12], **same})
        self.assertEqual(listed["second"], {"IMAGE": "second", "BASE": "vm", "REPLICAS": "1", "READERS": "0",
                                            "DIGEST": second["digest"][:12], **same})

    def test_image_that_is_read_is_removed_by_force_only(self):
        file = self.start()
        _, errors = self.farpage("image", "remove", "vm", status=1)
        self.assertIn("is being read by", errors)
        self.expect_right(self.guest(file, "--percent", "50"), 2048)
        self.server.kill(15)
        self.assertEqual(self.server.finish(60)[0], 0)
        self.farpage("image", "remove", "vm")
        self.assertEqual(self.images(), {})

    def test_image_removed_by_force_ends_in_sigbus_at_missing_pages(self):
        file = self.start(holes=0, zero_share=0, lend=64 * MIB)  # one slab
        self.expect_right(self.guest(file, "--percent", "25"), 1024)  # the cache has these
        guest = self.waiting_guest(file, "--percent", "26")
        self.farpage("image", "remove", "vm", "--force")
        self.assertEqual(self.images(), {})
        self.push(self.make_file("other.mem", seed=2), "other")  # into the memory that it had
        figures = self.let_touch(guest)
        self.assertEqual((figures["pages"], figures["wrong"], figures["sigbus"]), (1024, 0, 40))
        self.assertEqual(self.stats(2)["faults"]["lost"], 40)

    def test_sockets_are_made_on_request(self):
        self.start_cluster(transport="tcp")
        files = {name: self.make_file(name + ".mem", 4 * MIB, seed) for seed, name in enumerate(["one", "two"])}
        for name, file in files.items():
            self.push(file, name)
        folder = self.path("sockets")
        os.mkdir(folder)
        self.start_requests(folder)
        for name, file in files.items():
            self.socket = self.ask(folder, {"image": name, "socket": name + ".sock"})["socket"]
            self.expect_right(self.guest(file), 1024)
        for text in ["", "[]", '{"image": "nobody", "socket": "x"}', '{"image": "one", "socket": "../x"}',
                     '{"image": "one", "socket": "control.sock"}', '{"image": "one", "socket": "one.sock"}',
                     "x" * 5000]:
            self.assertIn("error", self.ask(folder, text), text)

    def test_it_waits_for_its_guests_before_it_ends(self):
        file = self.start()
        guest = self.waiting_guest(file)
        self.server.kill(15)
        self.log_has("waits_for_sessions=1")
        self.expect_right(self.let_touch(guest), 4096)
        self.assertEqual(self.server.finish(60)[0], 0)
        self.assertFalse(os.path.exists(self.socket))


class HugePages(SnapshotTest):
    """The memory of the VMM is hugetlb memory."""
    SIZE = 32 * MIB

    def setUp(self):
        super().setUp()
        self.need_huge_pages(2 * self.SIZE)

    def test_pages_of_two_mebibytes_are_put_together(self):
        file = self.start(size=self.SIZE)
        self.expect_right(self.guest(file, "--huge", "--regions", "2"), self.SIZE // PAGE)
        stats = self.stats(1)
        self.assertEqual((stats["faults"]["huge"], stats["faults"]["lost"]), (16, 0))
        # Another one shares the pages that are here, also with small pages.
        self.expect_right(self.guest(file, "--huge", "--shape", "v1.12", "--close"), self.SIZE // PAGE)
        self.expect_right(self.guest(file), self.SIZE // PAGE)
        self.assertEqual(self.stats(3)["reads"]["bytes"] // PAGE,
                         self.pushed["stored_pages"] + self.SIZE // PAGE * 16 // PAGE, "each page once, and the map")

    def test_two_mebibytes_that_were_given_back_are_zeros(self):
        file = self.start(size=self.SIZE, serve_options=["--prefetch-all"])
        for seed, options in enumerate([[], ["--regions", "3"], ["--no-events"]]):
            figures = self.guest(file, "--huge", "--steps", "2000", "--threads", "3", "--seed", str(seed + 1), *options)
            self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 0), options)

    def test_recorded_set_is_placed_in_two_mebibytes(self):
        file = self.start(size=self.SIZE, holes=0, serve_options=["--recorded-set", self.path("vm.set")])
        self.expect_right(self.guest(file, "--huge", "--percent", "25"), self.SIZE // PAGE // 4)
        self.stats(1)
        guest = self.waiting_guest(file, "--huge", "--percent", "25")
        self.log_has("replayed session=2 pages=2048")
        self.expect_right(self.let_touch(guest), self.SIZE // PAGE // 4)
        self.assertEqual(self.stats(2)["faults"]["huge"], 4, "those of the first guest")

    def test_one_wrong_page_ends_two_mebibytes_in_sigbus(self):
        file = self.start(size=self.SIZE)
        number, content = self.noise_page(file)
        self.damage(self.nodes[0], content)
        figures = self.guest(file, "--huge")
        self.assertEqual((figures["wrong"], figures["sigbus"]), (0, 512))
        self.assertIn(f"wrong_page image=vm page={number} node=node-1", self.server.log())
        self.assertEqual(self.stats(1)["faults"]["lost"], 1)


if __name__ == "__main__":
    unittest.main()
