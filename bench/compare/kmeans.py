"""k-means in numpy: kmeans.py POINTS. Each round reads all points once for each center, beside the distances."""
import sys

import numpy

DIMENSIONS, CENTERS, ROUNDS = 32, 8, 3

points = numpy.random.default_rng(1).random((int(sys.argv[1]), DIMENSIONS))
centers = points[:CENTERS].copy()
for _ in range(ROUNDS):
    distances = numpy.empty((len(points), CENTERS))
    for center in range(CENTERS):
        distances[:, center] = ((points - centers[center]) ** 2).sum(axis=1)
    nearest = distances.argmin(axis=1)
    for center in range(CENTERS):
        centers[center] = points[nearest == center].mean(axis=0)
print(round(float(centers.sum()), 6))
