"""memcached in far memory returns what was set, or reports a miss."""
import random
import socket
import unittest

from cluster import wait_until
from verifier import PATIENCE, Verifier, peak_of, scaled

KEYS = scaled(12_000, 800_000, 4_000)
MEBIBYTES = scaled(14, 900, 6)


class Memcached(Verifier):
    def talk(self, name):
        connection = socket.socket(socket.AF_UNIX)
        self.addCleanup(connection.close)
        connection.settimeout(PATIENCE)
        connection.connect(self.path(name))
        replies = connection.makefile("rb")
        self.addCleanup(replies.close)
        return connection, replies

    def work(self, name):
        """Sets, overwrites, deletes and gets keys from two connections; returns the number of hits."""
        source = random.Random(5)
        connections = [self.talk(name) for _ in range(2)]  # two of the server's threads
        values = {}
        order = [source.randrange(KEYS) for _ in range(2 * KEYS)]
        for begin in range(0, len(order), 200):
            connection, replies = connections[begin // 200 % 2]
            request = bytearray()
            for key in order[begin:begin + 200]:
                values[key] = b"%d-" % begin + source.randbytes(source.randrange(50, 1800))
                request += b"set key-%d 7 0 %d\r\n%s\r\n" % (key, len(values[key]), values[key])
            connection.sendall(request)
            for _ in order[begin:begin + 200]:
                self.assertEqual(replies.readline(), b"STORED\r\n")
        connection, replies = connections[0]
        for key in source.sample(sorted(values), 500):
            connection.sendall(b"delete key-%d\r\n" % key)
            self.assertIn(replies.readline(), (b"DELETED\r\n", b"NOT_FOUND\r\n"))
            del values[key]
        found = 0
        for begin in range(0, KEYS, 100):
            connection, replies = connections[begin // 100 % 2]
            connection.sendall(b"get " + b" ".join(b"key-%d" % i for i in range(begin, begin + 100))
                               + b"\r\n")
            while (line := replies.readline()) != b"END\r\n":
                _, key, flags, size = line.split()
                value = replies.read(int(size) + 2)[:-2]
                self.assertTrue(value == values.get(int(key[4:])) and flags == b"7", line)
                found += 1
        return found

    def verify(self, transport):
        def command(name):
            return [self.program("memcached"), "-s", self.path(name), "-m", str(MEBIBYTES), "-t", "2",
                    "-u", "root"]
        plain = self.serve(command("plain"), self.path("plain"))
        found = self.work("plain")
        self.assertGreater(found, KEYS // 3)  # although not all keys fit
        local = self.quarter(peak_of(plain.pid))
        plain.end()

        self.start_cluster(transport=transport, lend="1G")
        far = self.serve(command("far"), self.path("far"), transport, local)
        self.assertGreater(self.work("far"), found * 9 // 10)
        far.kill(15)
        self.assertEqual(far.finish()[0], 0, far.log())
        self.expect_real_paging(transport)

    def test_memcached_over_shm(self):
        self.verify("shm")

    def test_memcached_over_tcp(self):
        self.verify("tcp")


if __name__ == "__main__":
    unittest.main()
