"""A scan in numpy that changes what it reads: scan_in_place.py NUMBERS."""
import sys

import numpy

ROUNDS = 20

numbers = numpy.arange(int(sys.argv[1]), dtype=numpy.float64)
for _ in range(ROUNDS):
    numbers += 1.5
    numbers *= 0.999
print(round(float(numbers.sum()), 3))
