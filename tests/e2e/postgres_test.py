"""PostgreSQL's sorts, joins and aggregates in far memory give the rows of a plain run."""
import glob
import os
import pwd
import shutil
import signal
import subprocess
import unittest

from cluster import FARPAGE, MIB, Sampler, far_memory_of_run, wait_until
from verifier import PATIENCE, PATIENT, SLAB, Verifier, scaled

ROWS = scaled(100_000, 4_000_000, 15_000)
ROWS_OF_SESSIONS = scaled(25_000, 4_000_000, 15_000)
QUERIES = f"""
set max_parallel_workers_per_gather = 0;
create table item as select i, md5(i::text) as name, i * 7919::bigint % 100003 as price from generate_series(1, {ROWS}) i;
select count(*), sum(price), max(name) from (select * from item order by name, price offset 10) sorted;
select count(*), sum(a.i) from item a join (select i * 31 % {ROWS} as i, name from item) b on a.i = b.i where b.name > '4';
select count(*), max(items), max(length(list)) from (select price, count(*) items, string_agg(name, ',' order by i) list from item group by price) grouped;
create index by_name on item(name);
update item set price = price + 1 where i % 3 = 0;
delete from item where i % 7 = 0;
vacuum full item;
set enable_seqscan = off;
select count(*), sum(price), min(name) from item where name > 'a';
"""

SESSION = f"""
select count(*), sum(price), max(name) from (select md5(i::text) as name, i * 7919::bigint % 100003 as price
  from generate_series(1, {ROWS_OF_SESSIONS}) i order by name, price offset 10) sorted;
select count(*), max(items) from (select md5((i % 70000)::text) as name, count(*) as items,
  string_agg(i::text, ',') as list from generate_series(1, {ROWS_OF_SESSIONS}) i group by 1) grouped;
"""
# An invariant of pgbench's transactions.
BALANCE = """
select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
       (select count(*) from pgbench_history)
"""
# So that most of its memory is private to the sessions, and far.
SETTINGS = [f"--{setting}" for setting in (
    "shared_buffers=1MB", "fsync=off", "max_wal_size=1GB", "work_mem=256MB",
    "maintenance_work_mem=256MB")]


class Postgres(Verifier):
    def setUp(self):
        super().setUp()
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
        self.assertTrue(found, "postgres is not installed: ./dev setup programs")
        self.binaries = os.path.dirname(found[-1])
        self.user = []
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root; farpage keeps the capabilities that userfaultfd and this
            # folder need.
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            capabilities = "+sys_ptrace,+dac_read_search"
            self.user = [self.program("setpriv"), "--reuid", str(nobody.pw_uid), "--regid",
                         str(nobody.pw_gid), "--clear-groups", "--inh-caps", capabilities,
                         "--ambient-caps", capabilities]
        self.make_database("database")

    def tool(self, name):
        return os.path.join(self.binaries, name)

    def make_database(self, name):
        subprocess.run([*self.user, self.tool("initdb"), "-D", self.path(name), "-A", "trust", "-N", "-k",
                        "-U", "postgres", "-E", "UTF8", "--locale=C"],
                       check=True, capture_output=True, timeout=PATIENCE)

    def run_command(self, *options):
        # An embedded cluster of this user: a node of root would not accept it on its socket.
        return [*self.user, FARPAGE, "run", "--lend", "1G", "--stats-file", self.path("stats.json"),
                *PATIENT, *options, "--"]

    def verify(self, transport):
        self.stats_path = self.path("stats.json")
        with open(self.path("queries"), "w", encoding="ascii") as file:
            file.write(QUERIES.strip() + "\n")
        command = [self.tool("postgres"), "--single", "-D", self.path("database"), *SETTINGS, "postgres"]
        subprocess.run(["cp", "-a", self.path("database"), self.path("untouched")], check=True)
        expected, peak = self.plain([*self.user, *command], stdin=self.path("queries"))
        self.assertIn(b"count", expected)
        shutil.rmtree(self.path("database"))
        os.rename(self.path("untouched"), self.path("database"))

        # Half of the peak is code and shared buffers, which stay local.
        run = self.run_command("--local", self.quarter(peak // 2), "--transport", transport)
        found, _ = self.plain([*run, *command], stdin=self.path("queries"))
        self.assertTrue(found == expected, f"the output differs\n{found}\n{expected}")
        self.expect_real_paging(transport)
        subprocess.run([*self.user, self.tool("pg_checksums"), "-D", self.path("database"), "--check"],
                       check=True, capture_output=True, timeout=PATIENCE)

    def test_a_program_of_another_user_is_refused(self):
        if not self.user:
            self.skipTest("changing the user takes root")
        status, _, log = self.run_far([*self.user, self.tool("postgres"), "--version"],
                                      options=["--lend", "128M"])
        self.assertEqual(status, 126, log)
        self.assertIn("no pager answers", log)

    def client(self, name, *arguments):
        """A client program's output; it has no far memory."""
        run = subprocess.run([self.tool(name), "-h", self.folder, "-U", "postgres", *arguments, "postgres"],
                             capture_output=True, timeout=PATIENCE, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def serve_sessions(self, run):
        """Starts a server whose sessions are forked processes; returns their answers and the most far
        memory that they had."""
        turns = scaled(50, 20_000, 5)
        server = self.start_process([*run, self.tool("postgres"), "-D", self.path("database"), "-k",
                                     self.folder, "-h", "", *SETTINGS])
        ready = [self.tool("pg_isready"), "-q", "-h", self.folder]
        wait_until(lambda: server.popen.poll() is not None or subprocess.call(ready) == 0,
                   "postgres listens")
        self.client("pgbench", "-i", "-q")
        self.client("pgbench", "-n", "-c", "4", "-j", "2", "-t", str(turns))
        command = [self.tool("psql"), "-h", self.folder, "-U", "postgres", "-At", "-c",
                   f"set max_parallel_workers_per_gather = 0; {SESSION}", "postgres"]
        with Sampler(lambda: far_memory_of_run(server.pid)) as far:
            sessions = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
            answers = {session.communicate(timeout=PATIENCE)[0] for session in sessions}
        self.assertEqual([session.returncode for session in sessions], [0] * 2, server.log()[-3000:])
        self.assertEqual(len(answers), 1, answers)
        self.assertEqual(self.client("psql", "-At", "-c", BALANCE), b"t|%d\n" % (4 * turns))
        server.kill(signal.SIGINT)  # "fast" shutdown
        self.assertEqual(server.finish()[0], 0, server.log()[-3000:])
        return answers.pop(), far.most

    def sessions(self, transport):
        expected, _ = self.serve_sessions(self.user)
        self.stats_path = self.path("stats.json")
        found, far_memory = self.serve_sessions(self.run_command("--local", "6M", *([] if SLAB else ["--slab", "16M"]),
                                                     "--transport", transport))
        self.assertEqual(found, expected)
        self.expect_real_paging(transport)
        print("most far memory", far_memory / MIB, "MiB")
        self.assertGreater(far_memory, 0)
        self.assertLessEqual(far_memory, 6 * MIB * 105 // 100)

    def test_postgres_sessions_over_shm(self):
        self.sessions("shm")

    def test_postgres_sessions_over_tcp(self):
        self.sessions("tcp")

    def test_postgres_alone_over_shm(self):
        self.verify("shm")

    def test_postgres_alone_over_tcp(self):
        self.verify("tcp")


if __name__ == "__main__":
    unittest.main()
