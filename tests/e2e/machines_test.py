"""Programs of several processes or machines: MPI ranks."""
import os
import subprocess
import unittest

from verifier import PATIENCE, Verifier, scaled

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")


class Machines(Verifier):
    def mpi(self, transport):
        program = self.path("exchange")
        built = subprocess.run([self.program("mpicc"), "-O2", "-o", program, os.path.join(PROGRAMS, "exchange.c")],
                               capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(built.returncode, 0, built.stderr)
        # Messages go through shared memory: process_vm_writev() into far memory is not safe.
        self.compare([self.program("mpirun"), "--allow-run-as-root", "--oversubscribe", "--mca",
                      "btl_vader_single_copy_mechanism", "none", "-n", "2", program, str(scaled(16, 128)),
                      str(scaled(4, 20))], transport, local="12M")

    def test_openmpi_over_shm(self):
        self.mpi("shm")

    def test_openmpi_over_tcp(self):
        self.mpi("tcp")


if __name__ == "__main__":
    unittest.main()
