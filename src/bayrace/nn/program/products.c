/* The product A x A as steps of a program; products.py fills in the lines marked with @.
   As product.c, with CHANNELS known and results that may be added. */

typedef REAL real;
typedef real vec __attribute__((vector_size(LANES * sizeof(real))));
typedef real loose
    __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real)), may_alias));
#define AT(pointer) (*(loose *)(pointer))
#define PUT(pointer, value)        \
  do {                             \
    const vec result = value;      \
    if (add) AT(pointer) += result; \
    else AT(pointer) = result;     \
  } while (0)
#define STEP(name) void name(const long *run, const long *own, void *const *arrays)
#define channels CHANNELS
#define EACH_ATOM(body)                                                                     \
  const long add = own[0] & 1;                                                              \
  _Pragma("omp parallel for num_threads(run[THREADS]) schedule(static) if (run[ATOMS] > 64)") \
  for (long n = 0; n < run[ATOMS]; n++)                                                     \
    for (long c = 0; c < channels; c += LANES) body

enum { THREADS, ATOMS, PAIRS, EDGES, STRUCTURES };

/* arrays: x; out */
STEP(square) {
  EACH_ATOM({
    const real *x = (const real *)arrays[0] + n * INPUTS * channels + c;
    real *out = (real *)arrays[1] + n * ROWS * channels + c;
//@ square
  })
}

/* arrays: x, y; out */
STEP(mixed) {
  EACH_ATOM({
    const real *x = (const real *)arrays[0] + n * INPUTS * channels + c;
    const real *y = (const real *)arrays[1] + n * INPUTS * channels + c;
    real *out = (real *)arrays[2] + n * ROWS * channels + c;
//@ mixed
  })
}

/* arrays: g, x; out */
STEP(transposed) {
  EACH_ATOM({
    const real *g = (const real *)arrays[0] + n * ROWS * channels + c;
    const real *x = (const real *)arrays[1] + n * INPUTS * channels + c;
    real *out = (real *)arrays[2] + n * INPUTS * channels + c;
//@ transposed
  })
}
