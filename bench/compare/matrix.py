"""Matrix work in numpy: matrix.py ORDER.

One square matrix: made symmetric in place, by blocks; normalized along rows and columns; multiplied by
vectors (power iteration); the product of two bands of it.
"""
import sys

import numpy

BLOCK, ITERATIONS, BAND = 256, 6, 64

order = int(sys.argv[1])
matrix = numpy.random.default_rng(1).random((order, order))
for row in range(0, order, BLOCK):
    for column in range(0, row + 1, BLOCK):
        upper = matrix[column:column + BLOCK, row:row + BLOCK]
        lower = matrix[row:row + BLOCK, column:column + BLOCK]
        mean = (upper.T + lower) / 2
        lower[:], upper[:] = mean, mean.T
vector = numpy.ones(order)
for _ in range(ITERATIONS):
    vector = matrix @ vector
    length = numpy.linalg.norm(vector)
    vector /= length
matrix /= matrix.sum(axis=1)[:, None]
matrix /= matrix.sum(axis=0)
product = matrix[:BAND] @ matrix[:, -BAND:]
print(f"{length:.6f} {product.sum():.9f} {numpy.trace(matrix):.9f}")
