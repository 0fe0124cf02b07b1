"""`farpage attach --children`, and the children that attached programs fork: they check their memory themselves."""
import os
import re
import signal
import subprocess
import time
import unittest

from attach_test import memory_map
from attached_base import AttachedMemory, mappings
from cluster import BUILD, FARPAGE, MIB, PATIENCE, Service, children_of, engine_of, name_of, state_of, wait_until

FORKED_MEMORY = os.path.join(BUILD, "tests", "forked_memory")


class AttachChildren(AttachedMemory):
    def start_memory(self, mebibytes=48):
        return self.start_program([FORKED_MEMORY, str(mebibytes)])

    def fork(self, program, kind="fork"):
        """The id of the child, which has begun its work."""
        program.send(kind.encode() + b"\n")
        pid = int(program.popen.stdout.readline())
        self.addCleanup(self.kill_if_there, pid)
        return pid

    def fork_without_agent(self, attached, program, kind="fork"):
        """The id of the child, and its mappings before it has an agent."""
        attached.popen.send_signal(signal.SIGSTOP)
        pid = self.fork(program, kind)
        mapped = memory_map(pid)
        attached.popen.send_signal(signal.SIGCONT)
        return pid, mapped

    @staticmethod
    def kill_if_there(pid):
        if state_of(pid) not in "ZX" and name_of(pid) == "forked_memory":
            os.kill(pid, signal.SIGKILL)

    def await_agent(self, attached, *pids):
        for pid in pids:
            try:
                wait_until(lambda pid=pid: f"child_attached pid={pid} " in attached.log(), f"{pid} has an agent")
            except AssertionError as missing:
                raise AssertionError(f"{missing}\n{attached.log()}") from None

    def expect_child_paging(self, *pids, least=1000):
        """What the children did, and the first process did not."""
        targets = {target["pid"]: target for target in self.all_stats()}
        for pid in pids:
            self.assertIn(pid, targets)
            stats = targets[pid]
            moved = stats["faults"]["remote"] + stats["prefetched_pages"]
            print(f"child {pid}: {moved:,} pages fetched, {stats['evictions']['written']:,} written")
            self.assertGreater(stats["evictions"]["written"], least, stats)
            self.assertGreater(moved, least, stats)
            self.assertEqual(stats["faults"]["failed"], 0, stats)

    def expect_nobody_wrong(self, *programs):
        for program in programs:
            self.assertNotIn("wrong byte", program.log())

    # ---- children that are forked while the program is attached ----

    def test_the_pages_of_a_child_leave_and_come_back(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        child = self.fork(program)
        self.await_agent(attached, child)
        self.page(4)
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_child_paging(child)

    def test_children_over_tcp_each_with_a_budget_of_its_own(self):
        self.start_cluster(transport="tcp")
        program = self.start_memory()
        attached = self.attach(program.pid)
        children = [self.fork(program) for _ in range(3)]
        self.await_agent(attached, *children)
        self.page(4)
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_child_paging(*children, least=200)

    def test_children_of_a_program_that_was_started_with_an_agent(self):
        program = self.start_run([FORKED_MEMORY, "48"], local="16M", options=["--inject", "--lend", "512M"],
                                 stdin=subprocess.PIPE)
        self.assertEqual(program.popen.stdout.readline(), b"ready\n", program.log())
        # A child inherits what is far at the fork.
        (first,) = (pid for pid in children_of(program.pid) if name_of(pid) == "forked_memory")
        wait_until(lambda: any(far for _, _, size, far in mappings(first) if size >= 48 * MIB),
                   "the program's memory is far")
        child = self.fork(program)
        self.await_agent(program, child)
        self.page(4)
        self.expect_right(program)
        self.expect_child_paging(child)

    def test_children_with_the_pager_of_the_host(self):
        self.start_cluster()
        socket = self.path("pager.sock")
        self._owned(Service(["pager", "--socket", socket, "--local", "64M", "--coordinator", self.url],
                            self._log("pager")))
        self.url = None  # the command does not know the cluster
        program = self.start_memory()
        attached = self.start_process([FARPAGE, "attach", str(program.pid), "--local", "16M", "--pager", socket])
        wait_until(lambda: "attached to" in attached.log(), "attached")
        child, before = self.fork_without_agent(attached, program)
        self.await_agent(attached, child)
        self.page(2)
        self.detach(attached, program.pid)
        self.assertEqual(memory_map(child), before)
        self.expect_right(program)

    def test_children_of_children(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        grandchild = self.fork(program, "tree")
        self.await_agent(attached, grandchild)
        wait_until(lambda: attached.log().count("child_attached") == 2, "both have an agent")
        self.page(4)
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_child_paging(grandchild, least=200)

    def test_a_child_whose_parent_has_ended(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        orphan = self.fork(program, "orphan")
        self.await_agent(attached, orphan)
        program.send(b"end\n")
        wait_until(lambda: "has ended" in attached.log(), "the end of the program is told")
        time.sleep(1)
        self.assertIsNone(attached.popen.poll(), attached.log())
        self.assertNotIn(state_of(orphan), "ZX")
        os.kill(orphan, signal.SIGKILL)
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_nobody_wrong(program)

    def test_a_child_that_ends_soon_gets_none(self):
        program = self.start_program(["/bin/bash", "-c", "x=$(head -c 30000000 /dev/zero | tr '\\0' x); echo ready;"
                                      " for i in $(seq 60); do (y=${#x}; sleep 0.05); done; read; echo work 1 0"])
        attached = self.attach(program.pid)
        time.sleep(4)
        self.assertNotIn("child_attached", attached.log())
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")

    def test_a_child_executes_another_program(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        child = self.fork(program)
        self.await_agent(attached, child)
        program.send(b"exec /bin/sleep\n")
        wait_until(lambda: name_of(child) == "sleep", "it executes sleep")
        time.sleep(1)
        self.assertEqual(state_of(child), "S")
        self.addCleanup(lambda: name_of(child) == "sleep" and os.kill(child, signal.SIGKILL))
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")

    def test_why_a_child_has_no_agent_is_said_once(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        child = self.fork(program)
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: "child_without_agent" in attached.log(), "the reason")
        time.sleep(3)
        self.assertEqual(attached.log().count("child_without_agent"), 1)
        self.assertIn(f"is stopped: continue it (kill -CONT {child})", attached.log())
        os.kill(child, signal.SIGCONT)
        self.await_agent(attached, child)
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")

    # ---- ends ----

    def test_detaching_leaves_every_process_as_it_was(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        before = {}
        for kind in ("fork", "tree"):
            pid, before_its_agent = self.fork_without_agent(attached, program, kind)
            before[pid] = before_its_agent
        self.await_agent(attached, *before)
        for pid, text in before.items():
            self.assertNotEqual(memory_map(pid), text)
        self.page(2)
        self.detach(attached, program.pid)
        for pid, text in before.items():
            self.assertEqual(memory_map(pid), text)
        self.expect_right(program)
        self.expect_nobody_wrong(program)

    def test_detaching_gives_back_a_child_that_is_new(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        self.page(1)
        child = self.fork(program)
        before = memory_map(child).splitlines()  # with what it may have of its parent's agent
        self.detach(attached, program.pid)
        after, of_program = memory_map(child).splitlines(), memory_map(program.pid).splitlines()
        self.assertEqual([line for line in after if line not in before], [])
        self.assertEqual([line for line in before if line in of_program and line not in after], [])
        self.expect_right(program)

    def test_it_stays_while_a_child_cannot_be_given_back(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        child = self.fork(program)
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: state_of(child) == "T", "it is stopped")
        done = subprocess.run([FARPAGE, "detach", str(program.pid)], capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("1 forked children are still served", done.stderr)
        self.assertIn("is stopped", done.stderr)
        os.kill(child, signal.SIGCONT)
        self.detach(attached, program.pid)
        self.expect_right(program)

    def test_the_engine_is_killed(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        self.page(1)
        first = self.fork(program)
        time.sleep(0.3)  # a child that the engine has not begun to serve is lost with it
        for kills in range(1, 6):
            if kills == 3:  # then the other child has no agent yet
                self.await_agent(attached, first)
                second = self.fork(program)
                time.sleep(0.3)
            os.kill(engine_of(attached.pid), signal.SIGKILL)
            wait_until(lambda kills=kills: len(re.findall("taken_over", attached.log())) == kills, "a take-over")
            time.sleep(0.5)
        self.await_agent(attached, second)
        self.page(2)
        self.detach(attached, program.pid, kills=5)
        self.expect_right(program)
        self.expect_nobody_wrong(program)

    def kill_pager(self, attached):
        """Engine and holder at once."""
        holder = next(pid for pid in children_of(attached.pid) if name_of(pid) == "farpage-holder")
        engine = engine_of(attached.pid)
        os.kill(holder, signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        os.kill(holder, signal.SIGKILL)

    def test_engine_and_holder_are_killed(self):
        """What is remote could not come back: neither may read zeros."""
        program = self.start_memory()
        attached = self.attach(program.pid)
        self.page(1)
        child = self.fork(program)
        self.await_agent(attached, child)
        self.page(2)
        self.kill_pager(attached)
        for pid in (program.pid, child):
            wait_until(lambda pid=pid: state_of(pid) in "ZX", f"{pid} is killed")
        status, _ = attached.finish(PATIENCE)
        self.assertNotEqual(status, 0)
        self.expect_nobody_wrong(program)

    def test_a_child_without_an_agent_is_killed_with_its_pager(self):
        """It has no lifeline, so the command does it."""
        program = self.start_memory()
        attached = self.attach(program.pid)
        self.page(1)
        child = self.fork(program)
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: "child_without_agent" in attached.log(), "it cannot get one")
        self.kill_pager(attached)
        for pid in (program.pid, child):
            wait_until(lambda pid=pid: state_of(pid) in "ZX", f"{pid} is killed")
        self.assertIn(f"child_killed pid={child}", attached.log())
        self.expect_nobody_wrong(program)

    def test_the_command_is_killed(self):
        program = self.start_memory()
        attached = self.attach(program.pid)
        self.page(1)
        child = self.fork(program)
        self.await_agent(attached, child)
        self.page(2)
        attached.end()
        for pid in (program.pid, child):
            wait_until(lambda pid=pid: state_of(pid) in "ZX", f"{pid} is killed")
        self.expect_nobody_wrong(program)

    # ---- processes that are there before ----

    def test_descendants_are_attached_too(self):
        program = self.start_memory()
        pids = [self.fork(program), self.fork(program, "tree"), self.fork(program, "fork")]
        everyone = [program.pid, *pids, *(pid for pid in children_of(program.pid) if pid not in pids)]
        self.assertEqual(len(everyone), 5)
        before = {pid: memory_map(pid) for pid in everyone}
        attached = self.attach(program.pid, "48M", "--children")
        wait_until(lambda: "attached to 4 processes that it has started" in attached.log(), "all are attached")
        self.page(4)
        later = self.fork(program)
        self.await_agent(attached, later)
        self.page(2)
        self.detach(attached, program.pid)
        for pid, text in before.items():
            self.assertEqual(memory_map(pid), text)
        self.expect_right(program)
        self.expect_child_paging(*pids, least=200)

    def test_one_that_cannot_be_attached_is_left_alone(self):
        program = self.start_memory()
        first, second = self.fork(program), self.fork(program)
        os.kill(second, signal.SIGSTOP)
        wait_until(lambda: state_of(second) == "T", "it is stopped")
        attached = self.attach(program.pid, "32M", "--children")
        wait_until(lambda: "processes that it has started" in attached.log(), "all are attached")
        self.assertIn(f"left alone: process {second} (forked_memory) is stopped: continue it", attached.log())
        self.assertIn("attached to 1 processes", attached.log())
        os.kill(second, signal.SIGCONT)
        self.page(2)
        self.expect_right(program)
        self.expect_end_of_attachment(attached, "has ended")
        self.assertEqual({target["pid"] for target in self.all_stats()}, {program.pid, first})

    def test_the_program_itself_cannot_be_attached(self):
        program = self.start_memory()
        child = self.fork(program)
        program.kill(signal.SIGSTOP)
        wait_until(lambda: state_of(program.pid) == "T", "it is stopped")
        before = memory_map(child)
        done = subprocess.run([FARPAGE, "attach", str(program.pid), "--children", "--lend", "64M"],
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("is stopped", done.stderr)
        self.assertEqual(memory_map(child), before)
        program.kill(signal.SIGCONT)
        self.expect_right(program)


if __name__ == "__main__":
    unittest.main()
