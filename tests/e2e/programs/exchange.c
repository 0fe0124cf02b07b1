/* exchange MIB ROUNDS: two MPI ranks send each other a buffer of that size, with blocking and other
   calls, each from a heap of its own, and look at every word that came. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t word_of(int rank, int round, size_t place) {
  uint64_t word = (place + 1) * 0x9e3779b97f4a7c15u + (uint64_t)(rank * 1000 + round);
  return word ^ word >> 29;
}

static void check(const uint64_t* words, size_t count, int rank, int round) {
  for (size_t i = 0; i < count; i++) {
    if (words[i] == word_of(rank, round, i)) continue;
    fprintf(stderr, "word %zu of round %d is wrong\n", i, round);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3 || ranks != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  const size_t count = (size_t)atol(argv[1]) << 17;
  const int rounds = atoi(argv[2]), other = 1 - rank;
  uint64_t* out = malloc(count * sizeof *out);
  uint64_t* in = malloc(count * sizeof *in);
  if (out == NULL || in == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
  for (int round = 0; round < rounds; round++) {
    for (size_t i = 0; i < count; i++) out[i] = word_of(rank, round, i);
    if (round % 2 == 0) {
      MPI_Sendrecv(out, (int)count, MPI_UINT64_T, other, round, in, (int)count, MPI_UINT64_T, other,
                   round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Request requests[2];
      MPI_Irecv(in, (int)count, MPI_UINT64_T, other, round, MPI_COMM_WORLD, &requests[0]);
      MPI_Isend(out, (int)count, MPI_UINT64_T, other, round, MPI_COMM_WORLD, &requests[1]);
      MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
    check(in, count, other, round);
    check(out, count, rank, round);
  }
  MPI_Allreduce(out, in, (int)count, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  for (size_t i = 0; i < count; i++)
    if (in[i] != word_of(0, rounds - 1, i) + word_of(1, rounds - 1, i))
      MPI_Abort(MPI_COMM_WORLD, 4);
  if (rank == 0) printf("%d rounds of %zu words are right\n", rounds, count);
  MPI_Finalize();
  return 0;
}
