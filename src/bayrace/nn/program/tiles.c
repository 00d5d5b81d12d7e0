/* Products of matrices, a tile of rows and vectors at a time in registers. */
#define TILE (LANES * sizeof(real) >= 64 ? 8 : 4) /* rows of a product in registers, at 2 vectors */
#define LINE 64                                   /* bytes that are fetched together */

/* Numbers of a matrix, of which rows and columns are so many numbers from the next. */
typedef struct {
  const real *at;
  long row, column;
} view;

/* What becomes of sums: they are added to what is there, or quadratic * sums + linear * old takes
   their place, old being laid out as the result. Meanwhile `soon` is fetched, and what is `other`
   bytes behind it, up to `until`. */
typedef struct {
  int add;
  const real *old;
  real linear, quadratic;
  const char *soon, *until;
  long other;
} finish;

static const finish AS_IT_IS = {0};

/* to[r, c] = sum over i of a[r, i] b[i, c]; rows of `to` are `apart`, columns of b and to 1. */
#define SUMS(vectors)                                                                         \
  {                                                                                           \
    vec sum[TILE][vectors];                                                                   \
    UNROLL for (int r = 0; r < TILE; r++)                                                     \
      UNROLL for (int v = 0; v < vectors; v++)                                                \
        sum[r][v] = end.add ? (vec)AT(to + r * apart + v * LANES) : (vec){0};                 \
    for (long i = 0; i < size; i++) {                                                         \
      if (end.until) {                                                                        \
        __builtin_prefetch(end.soon + i * LINE, 0, 2);                                        \
        __builtin_prefetch(end.soon + end.other + i * LINE, 0, 2);                            \
      }                                                                                       \
      UNROLL for (int v = 0; v < vectors; v++) {                                              \
        const vec wide = AT(b.at + i * b.row + v * LANES);                                    \
        UNROLL for (int r = 0; r < TILE; r++)                                                 \
          sum[r][v] += a.at[r * a.row + i * a.column] * wide;                                 \
      }                                                                                       \
    }                                                                                         \
    UNROLL for (int r = 0; r < TILE; r++)                                                     \
      UNROLL for (int v = 0; v < vectors; v++) {                                              \
        const long place = r * apart + v * LANES;                                             \
        AT(to + place) = end.old ? end.quadratic * sum[r][v] + end.linear * AT(end.old + place) \
                                 : sum[r][v];                                                 \
      }                                                                                       \
  }

__attribute__((always_inline)) /* some strides, and most of `end`, are constants */
static inline void tile(int vectors, view a, view b, long size, real *to, long apart, finish end) {
  if (vectors == 2) SUMS(2)
  else SUMS(1)
}

/* a b, (rows, columns) of whole tiles, `size` numbers summed; of a triangle what is at and above
   the diagonal alone, and what else is in its vectors. */
__attribute__((always_inline))
static inline void product(int triangle, view a, long rows, view b, long columns, long size,
                           real *to, long apart, finish end) {
  const real *old = end.old;
  for (long r = 0; r < rows; r += TILE)
    for (long c = triangle ? r / LANES * LANES : 0; c < columns; c += 2 * LANES) {
      const view left = {a.at + r * a.row, a.row, a.column}, right = {b.at + c, b.row, 1};
      real *here = to + r * apart + c;
      end.old = old ? old + r * apart + c : 0;
      if (end.until && end.soon < end.until) {
        tile(columns - c >= 2 * LANES ? 2 : 1, left, right, size, here, apart, end);
        end.soon += size * LINE;
      } else {
        finish rest = end;
        rest.until = 0;
        tile(columns - c >= 2 * LANES ? 2 : 1, left, right, size, here, apart, rest);
      }
    }
}
