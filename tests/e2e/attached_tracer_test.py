"""A debugger beside `farpage attach`: who stops the agent, or all threads of the program, stops no fault."""
import ctypes
import os
import random
import signal
import sys
import time
import unittest

from attached_base import AttachedMemory
from cluster import engine_of, wait_until

PAGE = 4096
WALL = 0x40000000  # waitpid(2): threads of others, too
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207

# Page i of its memory holds the number i, and from the second line on the number of the line, too. Each line of its
# input has it check and rewrite all pages.
PROGRAM = """
import ctypes, mmap, sys
pages = int(sys.argv[1])
memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def content(page, stamp):
    return (page << 20 | stamp).to_bytes(8, "little") * 512
for page in range(pages):
    memory[page * 4096:(page + 1) * 4096] = content(page, 0)
print("ready", flush=True)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
for stamp, _ in enumerate(sys.stdin):
    wrong = 0
    for page in range(pages):
        wrong += memory[page * 4096:(page + 1) * 4096] != content(page, stamp)
        memory[page * 4096:(page + 1) * 4096] = content(page, stamp + 1)
    print(wrong, flush=True)
"""


def content(page, stamp):
    return (page << 20 | stamp).to_bytes(8, "little") * (PAGE // 8)


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Tracer:
    """Has threads stand. Of one thread only."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.restype = ctypes.c_long
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.threads = []

    def ask(self, request, thread):
        if self.libc.ptrace(request, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace request {request} for {thread}")

    def stop(self, thread):
        self.ask(PTRACE_SEIZE, thread)
        self.threads.append(thread)
        self.ask(PTRACE_INTERRUPT, thread)
        os.waitpid(thread, WALL)

    def let_go(self):
        while self.threads:
            self.ask(PTRACE_DETACH, self.threads.pop())

    def read(self, pid, address):
        """A page, by process_vm_readv."""
        bytes_ = ctypes.create_string_buffer(PAGE)
        local, remote = Iovec(ctypes.addressof(bytes_), PAGE), Iovec(address, PAGE)
        got = self.libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if got != PAGE:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        return bytes_.raw


def threads_of(pid):
    """Of a process: ids and names."""
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as file:
            found[int(thread)] = file.read().strip()
    return found


def agent_of(pid):
    return next(thread for thread, name in threads_of(pid).items() if name == "farpage-agent")


class AttachTraced(AttachedMemory):
    pages = 12_000

    def setUp(self):
        super().setUp()
        self.program = self.start_program([sys.executable, "-c", PROGRAM, str(self.pages)])
        self.address = int(self.program.popen.stdout.readline())
        self.attached = self.attach(self.program.pid)
        self.stamp = 0
        self.page()  # until the most has left
        self.rewrite()
        self.tracer = Tracer()
        self.addCleanup(self.tracer.let_go)

    def rewrite(self):
        self.program.send(b"\n")
        self.assertEqual(self.program.popen.stdout.readline(), b"0\n", self.attached.log())
        self.stamp += 1

    def stop_all(self):
        for thread in sorted(threads_of(self.program.pid)):
            self.tracer.stop(thread)

    def end(self, kills=0):
        """The program is as it was, and can be detached."""
        self.rewrite()
        self.detach(self.attached, self.program.pid, kills)
        self.expect_paging(least=2000)
        self.rewrite()

    def test_the_agent_stands(self):
        """The others go on, and what is remote comes back, above the budget: nothing can leave."""
        self.tracer.stop(agent_of(self.program.pid))
        for _ in range(2):
            self.rewrite()
        self.tracer.let_go()
        self.rewrite()
        self.end()

    def test_the_agent_stands_at_random_moments(self):
        """Also while it moves pages."""
        moment = random.Random(1)
        for _ in range(15):
            self.program.send(b"\n")
            for _ in range(4):
                self.tracer.stop(agent_of(self.program.pid))
                time.sleep(moment.random() * 0.002)
                self.tracer.let_go()
                time.sleep(moment.random() * 0.01)
            self.assertEqual(self.program.popen.stdout.readline(), b"0\n", self.attached.log())
            self.stamp += 1
        self.end()

    def test_a_debugger_reads_while_all_threads_stand(self):
        """By process_vm_readv. From /proc/PID/mem the kernel gives no page that is away, and does not wait (EIO)."""
        self.stop_all()
        for page in range(self.pages):
            read = self.tracer.read(self.program.pid, self.address + page * PAGE)
            self.assertEqual(read, content(page, self.stamp), f"page {page}")
        self.tracer.let_go()
        self.end()

    def test_all_threads_stand_in_the_middle_of_work(self):
        for _ in range(5):
            self.program.send(b"\n")
            time.sleep(0.05)
            self.stop_all()
            pages = random.Random(2).sample(range(self.pages), 500)
            for page in pages:
                read = self.tracer.read(self.program.pid, self.address + page * PAGE)
                self.assertIn(read, (content(page, self.stamp), content(page, self.stamp + 1)), f"page {page}")
            self.tracer.let_go()
            self.assertEqual(self.program.popen.stdout.readline(), b"0\n", self.attached.log())
            self.stamp += 1
        self.end()

    def test_the_engine_is_killed_while_all_threads_stand(self):
        """Its successor does not wait for the agent."""
        self.program.send(b"\n")
        time.sleep(0.05)
        self.stop_all()
        os.kill(engine_of(self.attached.pid), signal.SIGKILL)
        wait_until(lambda: "taken_over" in self.attached.log(), "a take-over")
        for page in range(0, self.pages, 10):
            read = self.tracer.read(self.program.pid, self.address + page * PAGE)
            self.assertIn(read, (content(page, self.stamp), content(page, self.stamp + 1)), f"page {page}")
        self.tracer.let_go()
        self.assertEqual(self.program.popen.stdout.readline(), b"0\n", self.attached.log())
        self.stamp += 1
        self.end(kills=1)

    def test_it_is_detached_after_the_agent_has_stood(self):
        self.tracer.stop(agent_of(self.program.pid))
        self.rewrite()
        self.tracer.let_go()
        self.detach(self.attached, self.program.pid)
        self.rewrite()


if __name__ == "__main__":
    unittest.main()
