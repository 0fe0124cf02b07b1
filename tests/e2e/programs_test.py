"""Real, unmodified programs give the same output in far memory."""
import os
import random
import subprocess
import unittest

from verifier import FORM, Verifier, scaled

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")

SQL = f"""
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price INTEGER, note BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {scaled(30_000, 30_000, 9_000)})
INSERT INTO item SELECT i, 'name-' || (i * 7919 % 60000), i * 31 % 1009, zeroblob(1) ||
  hex(i * 2654435761) || printf('%0200d', i) FROM n;
CREATE INDEX by_name ON item(name);
CREATE INDEX by_price ON item(price, name);
CREATE TABLE total AS SELECT price, count(*) AS items, sum(length(note)) AS bytes,
  max(name) AS last FROM item GROUP BY price;
SELECT count(*), sum(price), sum(length(note)), max(name) FROM item;
SELECT sum(items), sum(bytes), max(last) FROM total;
SELECT count(*) FROM item a JOIN item b ON b.name = 'name-' || a.id WHERE a.price < 100;
DELETE FROM item WHERE id % 3 = 0;
UPDATE item SET note = note || 'x' WHERE price % 5 = 0;
SELECT count(*), sum(length(note)) FROM item;
PRAGMA integrity_check;
"""

LIST_AND_DICT = f"""
count = {scaled(100_000, 100_000, 60_000)}
numbers = [i * 2654435761 % 4294967291 for i in range(count)]
words = {{f"key-{{n}}": n for n in numbers[:count // 4]}}
print(sum(numbers), len(words), sum(words.values()))
numbers[:count // 4] = reversed(numbers[:count // 4])
numbers.sort()
print(numbers[0], numbers[count // 2], numbers[-1])
print(sum(words[f"key-{{n}}"] for n in list(words.values())[::3]))
"""


FUNCTION = """
static uint32_t f{i}(const uint32_t *p, int n) {{
  uint32_t h = {i}u;
  for (int k = 0; k < n; k++) {{
    h ^= p[k] * {factor}u;
    if (h & {bit}u) h += p[k * {step} % n];
    switch (h % 7) {{ case 0: h ^= {i}u * 3; break; case 3: h -= {i}u; break; case 5: h *= 3; }}
  }}
  return h;
}}
"""


class Programs(Verifier):
    def sort(self, transport):
        seed = 1
        print("seed", seed)
        source = random.Random(seed)
        with open(self.path("input"), "wb") as file:
            for _ in range(scaled(30_000, 30_000, 15_000)):
                file.write(source.randbytes(200).hex().encode() + b"\n")
        self.compare([self.program("sort"), "-S", "200M", self.path("input")], transport)

    def test_sort_over_shm(self):
        self.sort("shm")

    def test_sort_over_tcp(self):
        self.sort("tcp")

    def sqlite(self, transport):
        self.compare([self.program("sqlite3"), ":memory:", SQL], transport)

    def test_sqlite_over_shm(self):
        self.sqlite("shm")

    def test_sqlite_over_tcp(self):
        self.sqlite("tcp")

    def python(self, transport):
        self.compare([self.program("python3"), "-c", LIST_AND_DICT], transport)

    def test_python_over_shm(self):
        self.python("shm")

    def test_python_over_tcp(self):
        self.python("tcp")

    def numpy(self, transport):
        self.compare([self.program("python3"), os.path.join(PROGRAMS, "arrays.py"),
                      str(scaled(500_000, 10_000_000, 20_000))], transport,
                     environment={"OPENBLAS_NUM_THREADS": "2"})

    def test_numpy_over_shm(self):
        self.numpy("shm")

    def test_numpy_over_tcp(self):
        self.numpy("tcp")

    def node(self, transport):
        self.compare([self.program("node"), os.path.join(PROGRAMS, "garbage.js"), str(scaled(3, 60))],
                     transport)

    def test_node_over_shm(self):
        self.node("shm")

    def test_node_over_tcp(self):
        self.node("tcp")

    def gcc(self, transport):
        functions = range(scaled(700, 12000, 100))
        with open(self.path("big.c"), "w", encoding="ascii") as file:
            file.write("#include <stdint.h>\n#include <stdio.h>\n")
            for i in functions:
                file.write(FUNCTION.format(i=i, factor=i * 2654435761 % 2**32, bit=1 << i % 20,
                                           step=i % 7 + 1))
            calls = "\n".join(f"h ^= f{i}(a, 64);" for i in functions)
            file.write("int main(void) { uint32_t a[64], h = 0; for (int i = 0; i < 64; i++) "
                       f"a[i] = i * 2654435761u;\n{calls}\nprintf(\"%08x\\n\", h); }}\n")
        # By the driver, which starts the compiler with vfork.
        self.compare([self.program("gcc"), "-O1", "-S", "-o", "-", self.path("big.c")], transport)

    def test_gcc_over_shm(self):
        self.gcc("shm")

    def test_gcc_over_tcp(self):
        self.gcc("tcp")

    def xz(self, transport):
        source = random.Random(3)
        words = [source.randbytes(source.randrange(2, 12)).hex().encode() for _ in range(2000)]
        with open(self.path("input"), "wb") as file:
            file.write(b" ".join(source.choices(words, k=scaled(10_000, 800_000))))
        packed = self.compare([self.program("xz"), "-9", "-c", self.path("input")], transport,
                              local="1M" if FORM == "lab" else None)
        unpacked = subprocess.run([self.program("xz"), "-d"], input=packed, capture_output=True,
                                  check=True).stdout
        with open(self.path("input"), "rb") as file:
            self.assertTrue(unpacked == file.read())

    def test_xz_over_shm(self):
        self.xz("shm")

    def test_xz_over_tcp(self):
        self.xz("tcp")


if __name__ == "__main__":
    unittest.main()
