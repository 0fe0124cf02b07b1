"""Programs that run already, and `farpage attach` beside them."""
import json
import re
import subprocess
import time

import cluster
import verifier
from cluster import FARPAGE, MIB, EndToEnd, Sampler, wait_until
from verifier import PATIENT, Verifier


def mappings(pid):
    """Of a process: access, name, bytes, and whether it has a userfaultfd (may be far)."""
    found = []
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if re.fullmatch("[0-9a-f]+-[0-9a-f]+", words[0]):
                begin, end = (int(address, 16) for address in words[0].split("-"))
                mapping = (words[1], words[5] if len(words) > 5 else "", end - begin)
            elif words[0] == "VmFlags:":
                found.append((*mapping, "um" in words))
    return found


class Attaching:
    """What the tests of programs that are started without far memory have in common."""
    attach_options = ()
    patience = cluster.PATIENCE  # for the end of a step

    def start_program(self, command, ready=b"ready\n"):
        """Returns when it has printed that it is ready."""
        process = self.start_with_input(command)
        self.assertEqual(process.popen.stdout.readline(), ready, process.log())
        return process

    def attach(self, pid, local="16M", *options):
        """Returns when the program is attached: to the cluster, or to one of its own if there is none."""
        where = ["--coordinator", self.url] if self.url else ["--lend", "512M"]
        self.stats_path = self.path("stats.json")
        process = self.start_process([FARPAGE, "attach", str(pid), "--local", local, "--stats-file", self.stats_path,
                                      *where, *self.attach_options, *options])
        wait_until(lambda: "attached to" in process.log() or process.popen.poll() is not None, "attached",
                   self.patience)
        self.assertIn("attached to", process.log())
        return process

    def detach(self, attached, pid, kills=0):
        done = subprocess.run([FARPAGE, "detach", str(pid)], capture_output=True, text=True, timeout=self.patience,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr + attached.log())
        self.expect_end_of_attachment(attached, "is detached", kills)

    def expect_end_of_attachment(self, attached, reason, kills=0):
        status, _ = attached.finish(self.patience)
        self.assertEqual(status, 0, attached.log())
        self.assertIn(reason, attached.log())
        self.assertEqual(attached.log().count("engine_killed"), kills, attached.log())

    def expect_local(self, pid, name):
        """What is shared under this name has not become far, nor has anything else that is shared."""
        found = mappings(pid)
        self.assertIn((True, False), {(path == name and access[3] == "s", far) for access, path, _, far in found})
        self.assertEqual({access for access, _, _, far in found if far}, {"rw-p"})

    def page(self, seconds=2):
        """Lets pages come and go; expect_paging() says later whether enough did."""
        time.sleep(seconds)

    def await_paging(self, least):
        """Until enough pages have come and gone, as the heartbeats of the cluster's borrowers tell: on a busy machine a
        program that changes its mappings all the time is served, and little of it leaves."""
        def enough():
            counters = [region["counters"] for region in json.loads(self.get("/v1/regions"))["regions"]]
            fetched, written = (sum(each.get(name, 0) for each in counters for name in names) for names in (
                ('farpage_faults_total{kind="remote"}', 'farpage_prefetch_total{outcome="installed"}'),
                ('farpage_evictions_total{kind="written"}',)))
            return min(fetched, written) > least
        wait_until(enough, f"{least} pages have come and gone", self.patience)

    def expect_paging(self, least=1000):
        stats = self.stats()
        moved = stats["faults"]["remote"] + stats["prefetched_pages"]
        print(f"{stats['program']}, {stats['local_bytes'] // MIB} MiB local: {moved:,} pages fetched,"
              f" {stats['evictions']['written']:,} written")
        self.assertGreater(moved, least, stats)
        self.assertGreater(stats["evictions"]["written"], least, stats)
        self.assertEqual(stats["faults"]["failed"], 0, stats)

    def expect_budget(self, pager, far_bytes, local=16 * MIB):
        """While it works on, its far memory that is here stays within the budget, once what is more has left. A
        program whose agent has no CPU for 0.1 s goes on above it, and that is said: then once more."""
        most_allowed = local * 105 // 100
        for _ in range(2):
            wait_until(lambda: far_bytes() <= local, "what is more has left", self.patience)
            said = pager.log().count("above_budget")
            with Sampler(far_bytes, pause=0.05) as here:
                self.page()
            if pager.log().count("above_budget") == said:
                break
        print(f"{here.most / MIB:.1f} MiB of far memory here, {local // MIB} MiB budget, {here.samples} samples")
        self.assertGreater(here.samples, 2)
        self.assertGreater(here.most, local // 2)
        self.assertLessEqual(here.most, most_allowed, pager.log())

    def expect_right(self, program):
        """It ends by itself, and has seen nothing wrong: a line "NAME rounds wrong" for each of its jobs."""
        status, output = program.finish_with(b"", verifier.PATIENCE)
        self.assertEqual(status, 0, output.decode() + program.log())
        lines = [line.split() for line in output.decode().splitlines()]
        self.assertTrue(lines)
        for name, rounds, wrong in lines:
            self.assertGreater(int(rounds), 0, name)
            self.assertEqual(int(wrong), 0, name)

    def attach_twice(self, program, local="16M", pid=None, least=1000):
        """Attached in the middle of its work, detached, attached again; its end comes while it is attached."""
        pid = pid or program.pid
        if self.url is None:
            self.start_cluster()
        attached = self.attach(pid, local)
        self.await_paging(least)
        self.detach(attached, pid)
        self.expect_paging(least)
        attached = self.attach(pid, local)
        self.await_paging(least)
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_paging(least)


class AttachedMemory(Attaching, EndToEnd):
    """Programs of these tests, which check themselves."""


class Attached(Attaching, Verifier):
    """Other programs, which keep the machine busy."""
    attach_options = PATIENT
    patience = verifier.PATIENCE
