/* Linear maps of features block by block, one matrix per block and kind of atom.

   Atoms of kind s are offsets[s] .. offsets[s + 1]. The matrix (K, C) of block b is at
   s * w_width + w_start. `fields` holds dim, K, C, x_start, y_start, w_start of each block. */

#include <string.h>

//@ vectors
//@ blocks
#define FIELDS 6

static inline long w_start(const long *field) { return field[FIELDS - 1]; }

void mix(long threads, long kinds, long count, long x_width, long y_width, long w_width,
         const long *offsets, const long *fields, const double *scales, const real *x,
         const real *w, real *y) {
#pragma omp parallel num_threads(threads)
  for (long s = 0; s < kinds; s++)
    for (long i = 0; i < count; i++) {
      const long *field = fields + i * FIELDS;
      block b;
      memcpy(&b, field, sizeof b);
      const long first = offsets[s] * b.dim, last = offsets[s + 1] * b.dim;
      const real *matrix = w + s * w_width + w_start(field);
#pragma omp for schedule(static) nowait
      for (long begin = first; begin < last; begin += TILE * GRAIN) {
        const long end = begin + TILE * GRAIN < last ? begin + TILE * GRAIN : last;
        map_rows(b, begin, end, x_width, y_width, x, matrix, y, (real)scales[i], 0);
      }
    }
}

/* w[k, c] = scale * sum over the rows of a block of x[k] y[c]. */
void outer(long threads, long kinds, long count, long x_width, long y_width, long w_width,
           const long *offsets, const long *fields, const double *scales, const real *x,
           const real *y, real *w) {
#pragma omp parallel num_threads(threads)
  for (long s = 0; s < kinds; s++)
    for (long i = 0; i < count; i++) {
      const long *field = fields + i * FIELDS;
      block b;
      memcpy(&b, field, sizeof b);
      real *matrix = w + s * w_width + w_start(field);
#pragma omp for schedule(static) nowait
      for (long k = 0; k < b.k; k += TILE) {
        const long rows = b.k - k < TILE ? b.k - k : TILE;
        memset(matrix + k * b.c, 0, rows * b.c * sizeof(real));
        sum_rows(b, k, offsets[s], offsets[s + 1], x_width, y_width, x, y, matrix,
                 (real)scales[i]);
      }
    }
}

/* Every (K, C) matrix to (C, K). */
void turn(long kinds, long count, long w_width, const long *fields, const real *w, real *turned) {
  for (long s = 0; s < kinds; s++)
    for (long i = 0; i < count; i++) {
      const long *field = fields + i * FIELDS;
      block b;
      memcpy(&b, field, sizeof b);
      const real *from = w + s * w_width + w_start(field);
      real *to = turned + s * w_width + w_start(field);
      for (long c = 0; c < b.c; c++)
        for (long k = 0; k < b.k; k++) to[c * b.k + k] = from[k * b.c + c];
    }
}
