"""Shared by the tests in which a foreign program, or a checker beside it, verifies the memory.

Each runs twice: plainly, which gives the right answer and how much memory is resident at the peak, and
with far memory and a quarter of that peak as its budget.
"""
import os
import shutil
import socket
import subprocess
import threading

from cluster import EndToEnd, MIB, wait_until

FORM = os.environ.get("FARPAGE_E2E_FORM", "short")
PATIENCE = 1500 if FORM == "full" else 240


# An emulated machine takes seconds to register a slab of the usual size.
SLAB = ["--slab", "8M"] if FORM == "lab" else []
# A busy machine must not be taken for a lost node.
PATIENT = ["--fault-deadline", "60s", "--operation-timeout", "10s", *SLAB]


def scaled(short, full, lab=None):
    """The amount of work: for some seconds, for some minutes, or for seconds of an emulated machine."""
    if FORM == "lab":
        return lab or max(2, short // 40)
    return full if FORM == "full" else short


class Verifier(EndToEnd):
    def program(self, name):
        """The path of the distribution's binary: PATH may contain wrappers."""
        path = shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin")
        self.assertTrue(path, f"{name} is not installed: ./dev setup programs")
        return path

    def start_coordinator(self, *more, **where):
        # These tests keep the machine busy: a late heartbeat must not make a node lost.
        return super().start_coordinator("--node-ttl", "60s", *more, **where)

    def start_node(self, name="node", *more, **options):
        return super().start_node(name, *SLAB, *more, **options)

    def plain(self, command, environment=None, stdin=None):
        """Standard output, and the peak resident memory of the program or of one that it started."""
        with (open(stdin or os.devnull, "rb") as source, open(self.path("output"), "w+b") as output,
              open(self.path("errors"), "w+b") as errors):
            run = subprocess.Popen(command, stdin=source, stdout=output, stderr=errors,
                                   env={**os.environ, **(environment or {})})
            watch = threading.Timer(PATIENCE, run.kill)
            watch.start()
            _, status, usage = os.wait4(run.pid, 0)
            watch.cancel()
            run.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            errors.seek(0)
            self.assertEqual(run.returncode, 0, errors.read()[-3000:].decode(errors="replace"))
            return output.read(), usage.ru_maxrss << 10

    @staticmethod
    def quarter(peak_bytes):
        return f"{max(1, peak_bytes // 4 // MIB)}M"

    def far(self, command, transport, local, environment=None, stdin=None, status=0):
        """The same with far memory; standard output."""
        for name, value in (environment or {}).items():
            self.addCleanup(os.environ.pop, name, None)
            os.environ[name] = value
        with open(stdin or os.devnull, "rb") as source:
            process = self.start_run(command, local=local, stdin=source,
                                     options=["--transport", transport, *PATIENT])
        found, output = process.finish(PATIENCE)
        self.assertEqual(found, status, process.log()[-3000:])
        return output

    def compare(self, command, transport, local=None, output=True, lend="1G", **more):
        """A plain run and a far run give the same output; the far one must have used far memory."""
        expected, peak = self.plain(command, **more)
        self.assertTrue(expected or not output)
        self.start_cluster(transport=transport, lend="512M" if FORM == "lab" else lend)
        local = local or self.quarter(peak)
        found = self.far(command, transport, local, **more)
        if output:
            self.assertTrue(found == expected, f"the output differs\n{found[:500]}\n{expected[:500]}")
        self.expect_real_paging(transport)
        return found

    def stats(self):
        """Of the process with the most far memory; compilers and others start several."""
        return max(self.all_stats(), key=lambda target: target["evictions"]["written"])

    def expect_real_paging(self, transport=None):
        stats = self.stats()
        # The figures of docs/compatibility.md.
        print(f"{stats['program']} over {stats['transports']}, {stats['local_bytes'] // MIB} MiB local:"
              f" {stats['faults']['remote']:,} remote faults,"
              f" {sum(stats['evictions'][kind] for kind in ('written', 'clean', 'zero')):,} evictions")
        super().expect_real_paging(transport)

    def serve(self, command, path, transport=None, local=None):
        """Starts a server, plain or with far memory; returns when it listens on its socket."""
        if transport:
            server = self.start_run(command, local=local,
                                    options=["--transport", transport, *PATIENT])
        else:
            server = self.start_process(command)
        wait_until(lambda: listens(path) or server.popen.poll() is not None, f"{command[0]} listens")
        self.assertIsNone(server.popen.poll(), server.log())
        return server


def listens(path):
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(path) == 0


def peak_of(pid):
    """VmHWM of a process."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))
