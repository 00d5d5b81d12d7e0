/* Linear maps of blocks of features. A block has `dim` components of every atom, each mapped from k
   to c numbers by one matrix (k, c): row (n, m) of x is at n * x_width + x_start + m * k, of y
   likewise with c. Rows of a block are numbered n * dim + m. */
#define TILE 6
#define GRAIN 8 /* tiles of rows that a thread takes at a time */
#define ATOMS_AT_ONCE 32 /* whose rows stay in the cache while matrices are summed */

typedef struct {
  long dim, k, c, x_start, y_start;
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
      UNROLL for (int v = 0; v < vectors; v++) {                                            \
        real *into = to[r] + v * LANES;                                                     \
        const vec value = scale * sum[r][v];                                                \
        if (add) AT(into) += value;                                                         \
        else AT(into) = value;                                                              \
      }                                                                                     \
  }

static inline void tile(int rows, int vectors, const real **from, real **to, const real *w,
                        long depth, long stride, real scale, long add) {
#define CASE(rows) \
  case rows: \
    if (vectors == 2) PRODUCT(rows, 2) \
    else PRODUCT(rows, 1) \
    break;
  switch (rows) { /* what is left of few atoms matters: one row alone waits for itself */
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(TILE)
  }
#undef CASE
}

/* Rows `begin` .. `end` of y = scale x w, or added to y. */
static inline void map_rows(block b, long begin, long end, long x_width, long y_width,
                            const real *x, const real *w, real *y, real scale, long add) {
  for (; begin < end; begin += TILE) {
    const int rows = end - begin < TILE ? end - begin : TILE;
    const real *from[TILE];
    real *to[TILE];
    for (int r = 0; r < rows; r++) {
      const long n = (begin + r) / b.dim, m = (begin + r) % b.dim;
      from[r] = x + n * x_width + b.x_start + m * b.k;
      to[r] = y + n * y_width + b.y_start + m * b.c;
    }
    for (long column = 0; column < b.c; column += 2 * LANES) {
      const int vectors = b.c - column >= 2 * LANES ? 2 : 1;
      real *into[TILE];
      for (int r = 0; r < rows; r++) into[r] = to[r] + column;
      tile(rows, vectors, from, into, w + column, b.k, b.c, scale, add);
    }
  }
}

/* Rows k .. k + TILE of the matrix w += scale * sum over atoms first .. last of x[k] y[c]. */
static inline void sum_rows(block b, long k, long first, long last, long x_width, long y_width,
                            const real *x, const real *y, real *w, real scale) {
  const int rows = b.k - k < TILE ? b.k - k : TILE;
  for (long begin = first; begin < last; begin += ATOMS_AT_ONCE) {
    const long end = begin + ATOMS_AT_ONCE < last ? begin + ATOMS_AT_ONCE : last;
    for (long c = 0; c < b.c; c += 2 * LANES) {
      const int both = b.c - c >= 2 * LANES;
      vec sum[TILE][2];
      UNROLL for (int r = 0; r < TILE; r++) sum[r][0] = sum[r][1] = (vec){0};
      for (long n = begin; n < end; n++) {
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
        real *into = w + (k + r) * b.c + c;
        if (r < rows) AT(into) += scale * sum[r][0];
        if (r < rows && both) AT(into + LANES) += scale * sum[r][1];
      }
    }
  }
}
