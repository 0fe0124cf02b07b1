"""Sorts, products, transforms and reductions of numpy arrays; its output is the same each time.

arrays.py ELEMENTS
"""
import sys

import numpy

source = numpy.random.default_rng(7)
numbers = source.integers(0, 1 << 60, int(sys.argv[1]), dtype=numpy.int64)
order = numpy.argsort(numbers, kind="stable")
assert (numbers[order] == numpy.sort(numbers)).all()
print(int(numbers[order][::1000].sum() & 0xFFFFFFFF), numpy.bitwise_xor.reduce(numbers))

back = numpy.fft.irfft(numpy.fft.rfft(numbers / 2.0**60), len(numbers))
assert numpy.allclose(back, numbers / 2.0**60)

matrix = source.random((400, 400))
assert numpy.allclose(matrix @ numpy.linalg.inv(matrix), numpy.eye(400))

records = numpy.zeros(len(numbers) // 2, dtype=[("key", "i8"), ("text", "S16")])
records["key"] = numbers[::2]
records["text"] = numpy.char.mod("%d", numbers[::2] % 99991)
chosen = records[records["key"] % 7 == 3]
print(len(chosen), chosen["key"].max(), numpy.unique(chosen["text"]).size)
