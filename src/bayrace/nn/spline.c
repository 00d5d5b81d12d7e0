/* Uniform cubic B-splines: pairs at d read or feed four consecutive rows of a table.

   d (pairs), base (pairs) or null: first row of a pair's own part of the table,
   table (rows, width), g and values (pairs, width). `order` counts derivatives. */

#include <string.h>

typedef REAL real;

/* Four weights and the first of the rows that they belong to; 0 beyond the last interval. */
static inline long weigh(real d, long base, long intervals, long order, real inverse, real *w) {
  const real u = d * inverse;
  if (!(u >= 0 && u < intervals)) { /* also not a number, and what no long can hold */
    w[0] = w[1] = w[2] = w[3] = 0;
    return base;
  }
  const long i = (long)u;
  const real t = u - (real)i, s = 1 - t;
  switch (order) {
    case 0:
      w[0] = s * s * s / 6;
      w[1] = (t * t * (3 * t - 6) + 4) / 6;
      w[2] = (s * s * (3 * s - 6) + 4) / 6;
      w[3] = t * t * t / 6;
      break;
    case 1:
      w[0] = -s * s / 2;
      w[1] = t * (3 * t - 4) / 2;
      w[2] = -s * (3 * s - 4) / 2;
      w[3] = t * t / 2;
      break;
    case 2:
      w[0] = s;
      w[1] = 3 * t - 2;
      w[2] = 3 * s - 2;
      w[3] = t;
      break;
    case 3:
      w[0] = -1;
      w[1] = 3;
      w[2] = -3;
      w[3] = 1;
      break;
    default:
      w[0] = w[1] = w[2] = w[3] = 0;
  }
  for (long k = 0; k < order; k++)
    for (int j = 0; j < 4; j++) w[j] *= inverse;
  return base + i;
}

void spline(long threads, long pairs, long width, long intervals, long order, double inverse,
            const real *d, const long *base, const real *table, real *values) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long p = 0; p < pairs; p++) {
    real w[4];
    const real *row = table + width * weigh(d[p], base ? base[p] : 0, intervals, order, inverse, w);
    const real *a = row, *b = a + width, *c = b + width, *e = c + width;
    real *out = values + p * width;
#pragma omp simd
    for (long i = 0; i < width; i++)
      out[i] = w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * e[i];
  }
}

void slope(long threads, long pairs, long width, long intervals, long order, double inverse,
           const real *d, const long *base, const real *table, const real *g_all, real *out) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long p = 0; p < pairs; p++) {
    real w[4], sum = 0;
    const real *row = table + width * weigh(d[p], base ? base[p] : 0, intervals, order, inverse, w);
    const real *a = row, *b = a + width, *c = b + width, *e = c + width, *g = g_all + p * width;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < width; i++)
      sum += g[i] * (w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * e[i]);
    out[p] = sum;
  }
}

/* Every thread adds into its own table: the first into the result, the others into `spare`. */
void adjoint(long threads, long pairs, long width, long intervals, long order, double inverse,
             const real *d, const long *base, const real *g_all, long rows, real *out,
             real *spare) {
  const long size = rows * width;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long thread = 0; thread < threads; thread++) {
    real *own = thread ? spare + (thread - 1) * size : out;
    memset(own, 0, size * sizeof(real));
    for (long p = pairs * thread / threads; p < pairs * (thread + 1) / threads; p++) {
      real w[4];
      real *row = own + width * weigh(d[p], base ? base[p] : 0, intervals, order, inverse, w);
      real *a = row, *b = a + width, *c = b + width, *e = c + width;
      const real *g = g_all + p * width;
#pragma omp simd
      for (long i = 0; i < width; i++) {
        const real value = g[i];
        a[i] += w[0] * value;
        b[i] += w[1] * value;
        c[i] += w[2] * value;
        e[i] += w[3] * value;
      }
    }
  }
  for (long thread = 1; thread < threads; thread++) {
    const real *own = spare + (thread - 1) * size;
#pragma omp simd
    for (long i = 0; i < size; i++) out[i] += own[i];
  }
}
