"""`farpage attach` to programs as they are installed, in the middle of their work: each is verified as it verifies
itself (attach_test.py has the ways to use memory, beginnings and ends).

Each has 25 to 40 % of its memory here, is attached, detached and attached again.
"""
import glob
import os
import pwd
import signal
import subprocess
import sys
import unittest

import postgres_test
import qemu_test
import redis_test
from attached_base import Attached, mappings
from cluster import BUILD, FARPAGE, MIB, child_of, children_of, name_of, resident_bytes, state_of, wait_until
from verifier import PATIENCE

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
ATTACHED_MEMORY = os.path.join(BUILD, "tests", "attached_memory")
MUSL = os.path.join(BUILD, "tests", "attached_memory_musl")
GROWING = os.path.join(BUILD, "tests", "growing_memory")
DIRECT_READS = os.path.join(BUILD, "tests", "direct_reads")
READS = 10_000
# It sorts in memory, and its answer is one line.
QUERY = """select count(*), sum(price), max(name) from (select md5(i::text) as name, i * 7919::bigint % 100003 as price
 from generate_series(1, 100000) i order by name, price offset 10) sorted;""".replace("\n", "")


def resident_kind(pid, kind):
    """Bytes; 0 when the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"Rss{kind}:"))
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return 0


def anonymous_bytes(pid):
    return resident_kind(pid, "Anon")


def shared_bytes(pid):
    return resident_kind(pid, "Shmem")


def third(pid):
    """Of the resident memory of a process, as --local takes it."""
    return f"{max(1, resident_bytes(pid) // 3 // MIB)}M"


def far_heap_bytes(pid):
    return sum(size for _, name, size, far in mappings(pid) if far and name == "[heap]")


class AttachedRedis(Attached):
    """redis-server, its data, and what it saves while its keys change."""
    start = redis_test.Redis.start
    fill = redis_test.Redis.fill
    check = redis_test.Redis.check
    change = staticmethod(redis_test.Redis.change)
    expect_done = redis_test.Redis.expect_done

    def setUp(self):
        super().setUp()
        self.server = self.path("redis-server")
        os.symlink(self.program("redis-check-rdb"), self.server)

    def save_while_keys_change(self, client, values, turn):
        """A child writes the state of its fork; returns the digest of that state."""
        digest = client("DEBUG", "DIGEST")
        self.assertIn(b"started", client("BGSAVE"))
        self.change(client, values, turn)
        self.expect_done(client, b"rdb_bgsave_in_progress", b"rdb_last_bgsave_status")
        return digest

    def expect_saved(self, digest):
        """redis's own check of its file, and the data that another server loads from it."""
        checked = subprocess.run([self.program("redis-check-rdb"), self.path("far/dump.rdb")], capture_output=True,
                                 text=True, timeout=PATIENCE, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout)
        again, client = self.start("far")
        self.assertEqual(client("DEBUG", "DIGEST"), digest)
        again.end()

    def test_redis(self):
        self.start_cluster(lend="1G")
        plain, other = self.start("plain")
        server, client = self.start("far")
        values = self.fill(client)
        self.fill(other)
        for turn in range(2):
            attached = self.attach(server.pid, third(server.pid))
            saved = self.save_while_keys_change(client, values, turn)
            self.change(other, dict(values), turn)
            self.check(client, values)
            self.assertEqual(client("DEBUG", "DIGEST"), other("DEBUG", "DIGEST"))
            if turn == 0:
                self.detach(attached, server.pid)
                self.expect_paging()
        self.check(client, values)
        server.kill(15)
        self.assertEqual(server.finish(PATIENCE)[0], 0, server.log())
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_paging()
        plain.end()
        self.expect_saved(saved)


class AttachedPostgres(Attached):
    """A session of a PostgreSQL server: a child of the postmaster, attached alone."""
    tool = postgres_test.Postgres.tool
    make_database = postgres_test.Postgres.make_database
    client = postgres_test.Postgres.client

    def setUp(self):
        super().setUp()
        self.start_cluster(lend="1G")  # while the folder, and the node's socket in it, are ours
        self.binaries = os.path.dirname(sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))[-1])
        self.user = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self.user = [self.program("setpriv"), "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid),
                         "--clear-groups"]
        self.make_database("database")

    def start_server(self):
        server = self.start_process([*self.user, self.tool("postgres"), "-D", self.path("database"), "-k", self.folder,
                                     "-h", "", *postgres_test.SETTINGS])
        ready = [self.tool("pg_isready"), "-q", "-h", self.folder]
        wait_until(lambda: server.popen.poll() is not None or subprocess.call(ready) == 0, "postgres listens")
        return server

    def test_a_session_of_postgres(self):
        server = self.start_server()
        session = self.start_with_input([self.tool("psql"), "-h", self.folder, "-U", "postgres", "-At", "postgres"])

        def ask(query):
            session.send(query.encode() + b"\n")
            return session.popen.stdout.readline()

        pid = int(ask("select pg_backend_pid();"))
        ask("set max_parallel_workers_per_gather = 0;")
        expected = self.client("psql", "-At", "-c", QUERY)
        for turn in range(2):
            session.send(QUERY.encode() + b"\n")
            wait_until(lambda: anonymous_bytes(pid) > 12 * MIB, "the session sorts")
            attached = self.attach(pid, "8M")
            self.assertEqual(session.popen.stdout.readline(), expected, server.log())
            self.assertEqual(ask(QUERY), expected, server.log())
            self.expect_local(pid, "/dev/zero")  # the buffers that all sessions share
            if turn == 0:
                self.detach(attached, pid)
                self.expect_paging()
        status, output = session.finish_with(b"", PATIENCE)
        self.assertEqual((status, output), (0, b""), session.log())
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_paging()
        server.kill(signal.SIGINT)  # "fast" shutdown
        self.assertEqual(server.finish(PATIENCE)[0], 0, server.log()[-3000:])

    def test_a_server_with_its_sessions(self):
        server = self.start_server()
        expected = self.client("psql", "-At", "-c", QUERY)

        class Session:
            def __init__(self, test):
                self.process = test.start_with_input([test.tool("psql"), "-h", test.folder, "-U", "postgres", "-At",
                                                      "postgres"])
                self.pid = int(self.ask("select pg_backend_pid();"))
                self.ask("set max_parallel_workers_per_gather = 0;")

            def begin(self, query):
                self.process.send(query.encode() + b"\n")

            def answer(self):
                return self.process.popen.stdout.readline()

            def ask(self, query):
                self.begin(query)
                return self.answer()

        sessions = [Session(self), Session(self)]
        for session in sessions:
            session.begin(QUERY)
        for session in sessions:
            wait_until(lambda pid=session.pid: anonymous_bytes(pid) > 12 * MIB, "the session sorts")
        attached = self.attach(server.pid, "16M", "--children")
        sessions.append(Session(self))  # forked while the server is attached
        sessions[-1].begin(QUERY)
        for session in sessions:
            self.assertEqual(session.answer(), expected, server.log())
        wait_until(lambda: f"child_attached pid={sessions[-1].pid} " in attached.log(), "the new session has an agent")
        for session in sessions:
            session.begin(QUERY)
        for session in sessions:
            self.assertEqual(session.answer(), expected, server.log())
        everyone = [server.pid, *children_of(server.pid)]
        self.assertGreater(len(everyone), 6)  # the server has workers, too
        self.detach(attached, server.pid)
        for pid in everyone:
            self.assertFalse(any(far for _, _, _, far in mappings(pid)), pid)
        written = {target["pid"]: target["evictions"]["written"] for target in self.all_stats()}
        print("pages written of each process:", written)
        for session in sessions:
            self.assertGreater(written[session.pid], 1000)
            self.assertEqual(session.ask(QUERY), expected, server.log())
            self.assertEqual(session.process.finish_with(b"", PATIENCE), (0, b""))
        server.kill(signal.SIGINT)  # "fast" shutdown
        self.assertEqual(server.finish(PATIENCE)[0], 0, server.log()[-3000:])


class AttachedQemu(Attached):
    """A guest that fills and checks its memory meanwhile."""
    filled_mib = 400
    guest = qemu_test.Qemu.guest
    files_of = qemu_test.Qemu.files_of
    output_of = qemu_test.Qemu.output_of
    expect_right_result = qemu_test.Qemu.expect_right_result
    expect_line = qemu_test.Qemu.expect_line

    def test_a_guest_that_fills_its_memory(self):
        self.start_cluster(lend="2G")
        guest = self.start_process(self.guest())
        for turn in range(2):
            wait_until(lambda: anonymous_bytes(guest.pid) > 160 * MIB or guest.popen.poll() is not None, "it fills")
            attached = self.attach(guest.pid, f"{qemu_test.LOCAL_MIB}M")
            if turn == 0:
                self.page()
                self.detach(attached, guest.pid)
                self.expect_paging()
        self.expect_right_result(guest)
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_paging(least=200)  # it may have ended soon


class AttachedPrograms(Attached):
    def test_a_static_program_of_musl(self):
        self.start_cluster()
        self.attach_twice(self.start_program([MUSL, "64", "touch", "discard", "map", "protect"]), "24M")

    def test_a_program_in_a_container(self):
        """It has user, process id and mount namespaces of its own."""
        self.start_cluster()
        enter = [self.program("unshare"), "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--mount"]
        program = self.start_program([*enter, ATTACHED_MEMORY, "64", "touch", "discard", "map"])
        pid = child_of(program.pid)
        self.assertNotEqual(os.readlink(f"/proc/{pid}/ns/pid"), os.readlink("/proc/self/ns/pid"))
        self.assertNotEqual(os.readlink(f"/proc/{pid}/ns/user"), os.readlink("/proc/self/ns/user"))
        self.attach_twice(program, "24M", pid=pid)

    def test_a_heap_that_grows_all_the_time(self):
        """Its new part becomes far while it still grows."""
        self.start_cluster()
        program = self.start_program([GROWING, "64"])
        attached = self.attach(program.pid, "16M")
        half = 32 * MIB
        wait_until(lambda: far_heap_bytes(program.pid) < half + 4 * MIB, "it is taken back to half")
        wait_until(lambda: far_heap_bytes(program.pid) > half + 12 * MIB, "what has grown becomes far")
        self.detach(attached, program.pid)
        self.expect_paging()
        self.expect_right(program)

    def start_direct_reader(self, *more):
        """Of a file on a file system that has O_DIRECT, which that of the temporary files may not have."""
        file = os.path.join(os.path.dirname(BUILD), f"direct-{os.getpid()}.bin")
        self.addCleanup(os.remove, file)
        return self.start_program([DIRECT_READS, file, str(READS), *more])

    def read_directly(self, program):
        """READS reads more; returns how many were bad so far."""
        program.send(b"\n")
        name, reads, bad = program.popen.stdout.readline().split()
        self.assertEqual(name, b"direct")
        self.assertGreaterEqual(int(reads), READS)
        return int(bad)

    def test_a_reader_past_the_page_cache(self):
        """A device writes to frames while their pages leave: no read is bad."""
        self.start_cluster()
        program = self.start_direct_reader()
        for turn in range(2):
            attached = self.attach(program.pid, "5M")
            self.assertEqual(self.read_directly(program), 0)
            if turn == 0:
                self.detach(attached, program.pid)
                self.expect_paging()
        self.assertEqual(program.finish_with(b"", PATIENCE)[0], 0, program.log())
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_paging()

    def test_a_reader_past_the_page_cache_notices_dropped_pages(self):
        """The control: the same reader, whose pages leave by MADV_DONTNEED; on a busy machine few of them at a time."""
        program = self.start_direct_reader("drop")
        self.assertTrue(any(self.read_directly(program) > 0 for _ in range(20)))

    def test_java_with_the_z_collector(self):
        """Its heap is shared memory, which stays here; what else the JVM allocates becomes far."""
        self.start_cluster()
        subprocess.run([self.program("javac"), "-d", self.folder, os.path.join(PROGRAMS, "Maps.java")], check=True,
                       timeout=PATIENCE)
        java = self.start_program([self.program("java"), "-XX:+UseZGC", "-Xmx96m", "-cp", self.folder, "Maps", "60000"])
        wait_until(lambda: shared_bytes(java.pid) > 48 * MIB, "its heap is in use")
        heap = shared_bytes(java.pid)
        for turn in range(2):
            attached = self.attach(java.pid, "4M")
            self.page()
            self.expect_local(java.pid, "/memfd:java_heap")
            self.assertGreaterEqual(shared_bytes(java.pid), heap)
            if turn == 0:
                self.detach(attached, java.pid)
                self.expect_paging()
        self.expect_right(java)
        self.expect_end_of_attachment(attached, "has ended")
        self.expect_paging()


# Sleeps when it has locked 64 MiB, or restricted its system calls (to all of them).
SLEEPER = """
import ctypes, mmap, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == "lock":
    memory = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    done = libc.mlock(ctypes.byref(ctypes.c_char.from_buffer(memory)), ctypes.c_size_t(64 << 20))
if sys.argv[1] == "filter":
    allow = (ctypes.c_uint64 * 1)(0x7fff000000000006)  # BPF_RET, SECCOMP_RET_ALLOW
    program = (ctypes.c_uint64 * 2)(1, ctypes.addressof(allow))
    done = libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program)
assert done == 0, ctypes.get_errno()
print("ready", flush=True)
time.sleep(1000)
"""


class AttachRefused(Attached):
    """One line, which names the cure; the program goes on as if nothing had been."""

    def refused(self, pid, reason, status=1, local="16M", user=()):
        runs = state_of(pid) not in "ZX"
        done = subprocess.run([*user, FARPAGE, "attach", str(pid), "--local", local, "--lend", "64M"], text=True,
                              capture_output=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(reason, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertNotIn(state_of(pid), "TtZX" if runs else "Tt")

    def start_sleeper(self, how):
        return self.start_program([sys.executable, "-c", SLEEPER, how])

    def test_a_program_that_is_traced(self):
        program = self.start_process(["/bin/sleep", "1000"])
        tracer = self.start_process([self.program("strace"), "-o", "/dev/null", "-p", str(program.pid)])

        def tracer_of():
            with open(f"/proc/{program.pid}/status", encoding="utf-8") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("TracerPid:"))

        wait_until(lambda: tracer_of() == tracer.pid, "it is traced")
        self.refused(program.pid, f"traced by process {tracer.pid} (strace): detach that one first")
        self.assertEqual(tracer_of(), tracer.pid)

    def test_a_program_that_restricts_its_system_calls(self):
        program = self.start_sleeper("filter")
        self.refused(program.pid, "allow that with --allow-seccomp")

    def test_a_program_that_has_locked_its_memory(self):
        program = self.start_sleeper("lock")
        self.refused(program.pid, "has locked 64M of its memory (mlock), which stays local: at most 13.6M")
        self.refused(program.pid, "at most 54.4M may be with this --local, so raise it", local="64M")
        self.start_cluster()
        self.detach(self.attach(program.pid, "96M"), program.pid)

    @unittest.skipIf(os.geteuid() != 0, "changing the user takes root")
    def test_a_program_of_another_user(self):
        program = self.start_process(["/bin/sleep", "1000"])
        user = [self.program("setpriv"), "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]
        self.refused(program.pid, "belongs to another user, or may not be traced: run as root", user=user)

    def test_a_process_that_is_not_there(self):
        self.refused(4194301, "there is no process 4194301: check the id")

    def test_a_process_that_has_ended(self):
        child = os.fork()
        if child == 0:
            os._exit(0)
        self.addCleanup(os.waitpid, child, 0)
        wait_until(lambda: state_of(child) == "Z", "it is a zombie")
        self.refused(child, f"process {child} has ended")

    def test_a_thread_of_the_kernel(self):
        if name_of(2) != "kthreadd":
            self.skipTest("no threads of the kernel are seen in this process id namespace")
        self.refused(2, "is a thread of the kernel: name a program's process", status=2)

    def test_a_program_that_is_attached_already(self):
        self.start_cluster()
        program = self.start_process(["/bin/sleep", "1000"])
        attached = self.attach(program.pid, "16M")
        self.refused(program.pid, "has far memory already")
        self.detach(attached, program.pid)

    def test_a_program_that_was_started_by_farpage_run(self):
        self.start_cluster()
        run = self.start_run(["/bin/cat"], stdin=subprocess.PIPE)
        wait_until(lambda: child_of(run.pid) and name_of(child_of(run.pid)) == "cat", "it runs")
        self.refused(child_of(run.pid), "far memory already")
        self.assertEqual(run.finish_with(b"still here")[1], b"still here")


if __name__ == "__main__":
    unittest.main()
