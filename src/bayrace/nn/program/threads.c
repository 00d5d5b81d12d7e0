/* At most one thread for every 64 items, which take microseconds or so each. */
static inline long threads_for(const long *run, long items) {
  const long most = items / 64 + 1;
  return run[THREADS] < most ? run[THREADS] : most;
}

/* Sums that several threads add to: each but the first has zeros of its own, which are added in the
   order of the threads, so that a number of threads gives one result. */
static inline real *spare_sums(long threads, long size) {
  return threads > 1 ? calloc((threads - 1) * size, sizeof(real)) : 0;
}

static inline real *part(long thread, long size, real *shared, real *spare) {
  return thread ? spare + (thread - 1) * size : shared;
}

static void merge(long threads, long size, real *shared, real *spare) {
  if (!spare) return;
#pragma omp parallel for simd num_threads(threads) schedule(static) if (size > 20000)
  for (long i = 0; i < size; i++)
    for (long thread = 1; thread < threads; thread++) shared[i] += spare[(thread - 1) * size + i];
  free(spare);
}
