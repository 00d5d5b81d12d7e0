/* Linear maps of features block by block, one matrix per block and kind of atom.

   Atoms of kind s are offsets[s] .. offsets[s + 1]. Block b maps each of its `dim` components from
   K to C numbers: row (n, m) of x at n * x_width + x_start + m * K, of y likewise with C, its matrix
   (K, C) at s * w_width + w_start. `blocks` holds dim, K, C, x_start, y_start, w_start of each. */

#include <string.h>

typedef REAL real;
typedef real vec __attribute__((vector_size(LANES * sizeof(real))));
typedef real loose
    __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real)), may_alias));
#define AT(pointer) (*(loose *)(pointer))
#define TILE 6
#define FIELDS 6
#define UNROLL _Pragma("GCC unroll 8")
#define GRAIN 8 /* tiles of rows that a thread takes at a time */

typedef struct {
  long dim, k, c, x_start, y_start, w_start;
} block;

/* `rows` rows at a time against `vectors` vectors of columns, sums kept in registers. */
#define PRODUCT(rows, vectors)                                                              \
  {                                                                                         \
    vec sum[rows][vectors];                                                                 \
    UNROLL for (int r = 0; r < rows; r++)                                                   \
      UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = (vec){0};                        \
    for (long k = 0; k < depth; k++)                                                        \
      UNROLL for (int v = 0; v < vectors; v++) {                                            \
        const vec column = AT(w + k * stride + v * LANES);                                  \
        UNROLL for (int r = 0; r < rows; r++) sum[r][v] += from[r][k] * column;             \
      }                                                                                     \
    UNROLL for (int r = 0; r < rows; r++)                                                   \
      UNROLL for (int v = 0; v < vectors; v++) AT(to[r] + v * LANES) = scale * sum[r][v];   \
  }

static inline void tile(int rows, int vectors, const real **from, real **to, const real *w,
                        long depth, long stride, real scale) {
  if (vectors == 2 && rows == TILE) PRODUCT(TILE, 2)
  else if (rows == TILE) PRODUCT(TILE, 1)
  else
    for (int row = 0; row < rows; row++, from++, to++) {
      if (vectors == 2) PRODUCT(1, 2)
      else PRODUCT(1, 1)
    }
}

void mix(long threads, long kinds, long count, long x_width, long y_width, long w_width,
         const long *offsets, const long *fields, const double *scales, const real *x,
         const real *w, real *y) {
#pragma omp parallel num_threads(threads)
  for (long s = 0; s < kinds; s++)
    for (long i = 0; i < count; i++) {
      block b;
      memcpy(&b, fields + i * FIELDS, sizeof b);
      const long first = offsets[s] * b.dim, last = offsets[s + 1] * b.dim;
      const real *matrix = w + s * w_width + b.w_start;
#pragma omp for schedule(static) nowait
      for (long chunk = first; chunk < last; chunk += TILE * GRAIN)
        for (long begin = chunk; begin < chunk + TILE * GRAIN && begin < last; begin += TILE) {
          const int rows = last - begin < TILE ? last - begin : TILE;
          const real *from[TILE];
          real *to[TILE];
          for (int r = 0; r < rows; r++) {
            const long n = (begin + r) / b.dim, m = (begin + r) % b.dim;
            from[r] = x + n * x_width + b.x_start + m * b.k;
            to[r] = y + n * y_width + b.y_start + m * b.c;
          }
          long column = 0;
          for (; column < b.c; column += 2 * LANES) {
            const int vectors = b.c - column >= 2 * LANES ? 2 : 1;
            real *into[TILE];
            for (int r = 0; r < rows; r++) into[r] = to[r] + column;
            tile(rows, vectors, from, into, matrix + column, b.k, b.c, (real)scales[i]);
          }
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
      block b;
      memcpy(&b, fields + i * FIELDS, sizeof b);
      real *matrix = w + s * w_width + b.w_start;
      const real scale = (real)scales[i];
#pragma omp for schedule(static) nowait
      for (long k = 0; k < b.k; k += TILE) {
        const int rows = b.k - k < TILE ? b.k - k : TILE;
        for (long c = 0; c < b.c; c += 2 * LANES) {
          const int both = b.c - c >= 2 * LANES;
          vec sum[TILE][2];
          UNROLL for (int r = 0; r < TILE; r++) sum[r][0] = sum[r][1] = (vec){0};
          for (long n = offsets[s]; n < offsets[s + 1]; n++) {
            const real *from = x + n * x_width + b.x_start + k;
            const real *to = y + n * y_width + b.y_start + c;
            for (long m = 0; m < b.dim; m++, from += b.k, to += b.c) {
              if (both && rows == TILE) {
                const vec low = AT(to), high = AT(to + LANES);
                UNROLL for (int r = 0; r < TILE; r++) {
                  sum[r][0] += from[r] * low;
                  sum[r][1] += from[r] * high;
                }
              } else {
                const vec low = AT(to);
                UNROLL for (int r = 0; r < TILE; r++)
                  if (r < rows) sum[r][0] += from[r] * low;
                if (both) {
                  const vec high = AT(to + LANES);
                  UNROLL for (int r = 0; r < TILE; r++)
                    if (r < rows) sum[r][1] += from[r] * high;
                }
              }
            }
          }
          UNROLL for (int r = 0; r < TILE; r++) {
            if (r < rows) AT(matrix + (k + r) * b.c + c) = scale * sum[r][0];
            if (r < rows && both) AT(matrix + (k + r) * b.c + c + LANES) = scale * sum[r][1];
          }
        }
      }
    }
}

/* Every (K, C) matrix to (C, K). */
void turn(long kinds, long count, long w_width, const long *fields, const real *w, real *turned) {
  for (long s = 0; s < kinds; s++)
    for (long i = 0; i < count; i++) {
      block b;
      memcpy(&b, fields + i * FIELDS, sizeof b);
      const real *from = w + s * w_width + b.w_start;
      real *to = turned + s * w_width + b.w_start;
      for (long c = 0; c < b.c; c++)
        for (long k = 0; k < b.k; k++) to[c * b.k + k] = from[k * b.c + c];
    }
}
