/* Passes of the fused product A x A; products.py fills in the lines marked with @.
   With B the symmetric table of the product: square gives B(x, x), mixed 2 B(x, y), and transposed
   the gradient of `square` at x in the direction g, 2 B^T(g, x).

   x, y and transposed's out (atoms, INPUTS, channels); g and out (atoms, ROWS, channels). */

typedef REAL real;
typedef real vec __attribute__((vector_size(LANES * sizeof(real))));
typedef real loose
    __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real)), may_alias));
#define AT(pointer) (*(loose *)(pointer))
#define PUT(pointer, value) AT(pointer) = (value)
#define EACH_ATOM(body)                                                     \
  _Pragma("omp parallel for num_threads(threads) schedule(static)")         \
  for (long n = 0; n < atoms; n++)                                          \
    for (long c = 0; c < channels; c += LANES) body

void square(long threads, long atoms, long channels, const real *x_all, real *out_all) {
  EACH_ATOM({
    const real *x = x_all + n * INPUTS * channels + c;
    real *out = out_all + n * ROWS * channels + c;
//@ square
  })
}

void mixed(long threads, long atoms, long channels, const real *x_all, const real *y_all,
           real *out_all) {
  EACH_ATOM({
    const real *x = x_all + n * INPUTS * channels + c;
    const real *y = y_all + n * INPUTS * channels + c;
    real *out = out_all + n * ROWS * channels + c;
//@ mixed
  })
}

void transposed(long threads, long atoms, long channels, const real *g_all, const real *x_all,
                real *out_all) {
  EACH_ATOM({
    const real *g = g_all + n * ROWS * channels + c;
    const real *x = x_all + n * INPUTS * channels + c;
    real *out = out_all + n * INPUTS * channels + c;
//@ transposed
  })
}
