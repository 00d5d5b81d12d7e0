/* Steps of a program: linear maps, copies and activations. REAL and LANES are set when compiling.

   Every step has one signature: what the run knows, what the step knows, and its arrays.
   own[0] has one bit per output, in their order: add to it instead of setting it. Numbers that are
   not whole are stored as the bits of a double. */

#include <math.h>
#include <string.h>

//@ vectors
#define STEP(name) void name(const long *run, const long *own, void *const *arrays)
#define GAIN ((real)1.6765) /* of SiLU, as in bayrace.nn.radial */

enum { THREADS, ATOMS, PAIRS, EDGES, STRUCTURES };

typedef void kernel(const long *run, const long *own, void *const *arrays);

/* A program is a row of [kernel, address of its own numbers, count of arrays, their places]. */
void perform(long steps, const long *program, const long *run, void *const *values) {
  void *arrays[64];
  for (long i = 0; i < steps; i++) {
    const long count = program[2];
    for (long k = 0; k < count; k++) {
      const long place = program[3 + k];
      arrays[k] = place < 0 ? 0 : values[place];
    }
    ((kernel *)program[0])(run, (const long *)program[1], arrays);
    program += 3 + count;
  }
}

static inline double number(long bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

//@ lanes
//@ sigmoid

//@ blocks
#define FIELDS (5 + 3) /* of a block, and behind it: */
#define SCALE(field) ((real)number((field)[5]))
#define MATRIX(array, field, s) ((real *)(array) + (field)[6] + (s) * (field)[7])

/* y = x w. own: add, kinds, blocks, width of x, width of y, then the blocks.
   arrays: first row of every kind, x, a matrix (kinds, k, c) for each block, y. */
STEP(mix) {
  const long add = own[0] & 1, kinds = own[1], count = own[2], x_width = own[3], y_width = own[4];
  const long *offsets = arrays[0];
  const real *x = arrays[1];
  real *y = arrays[2 + count];
  const long many = offsets[kinds] * x_width > 20000;
#pragma omp parallel num_threads(run[THREADS]) if (many)
  for (long s = 0; s < kinds; s++)
    for (long i = 0; i < count; i++) {
      const long *field = own + 5 + FIELDS * i;
      block b;
      memcpy(&b, field, sizeof b);
      if (!b.c || (add && !b.k)) continue; /* nothing is written, or zeros are added */
      const long first = offsets[s] * b.dim, last = offsets[s + 1] * b.dim;
      const real *matrix = MATRIX(arrays[2 + i], field, s);
      const real scale = SCALE(field);
#pragma omp for schedule(static) nowait
      for (long begin = first; begin < last; begin += TILE * GRAIN) {
        const long end = begin + TILE * GRAIN < last ? begin + TILE * GRAIN : last;
        map_rows(b, begin, end, x_width, y_width, x, matrix, y, scale, add);
      }
    }
}

/* y = x w^T for a few rows, with w (c, k) as it is. own and arrays as for `mix`. */
STEP(mix_few) {
  const long add = own[0] & 1, kinds = own[1], count = own[2], x_width = own[3], y_width = own[4];
  const long *offsets = arrays[0];
  for (long s = 0; s < kinds; s++)
    for (long i = 0; i < count; i++) {
      const long *field = own + 5 + FIELDS * i;
      block b;
      memcpy(&b, field, sizeof b);
      const real *matrix = MATRIX(arrays[2 + i], field, s);
      for (long row = offsets[s] * b.dim; row < offsets[s + 1] * b.dim; row++) {
        const long n = row / b.dim, m = row % b.dim;
        const real *x = (const real *)arrays[1] + n * x_width + b.x_start + m * b.k;
        real *y = (real *)arrays[2 + count] + n * y_width + b.y_start + m * b.c;
        for (long c = 0; c < b.c; c++) {
          vec sums = {0};
          for (long k = 0; k < b.k; k += LANES) sums += AT(x + k) * AT(matrix + c * b.k + k);
          const real sum = total(sums) * SCALE(field);
          y[c] = add ? y[c] + sum : sum;
        }
      }
    }
}

/* The gradient of the matrices: w[k, c] = scale * sum over the rows of a block of x[k] y[c].
   own: adds, kinds, blocks, widths, blocks; arrays: as for `mix`, but y before the matrices. */
STEP(outer) {
  const long kinds = own[1], count = own[2], x_width = own[3], y_width = own[4];
  const long *offsets = arrays[0];
  const real *x = arrays[1], *y = arrays[2];
  const long many = offsets[kinds] * x_width > 20000;
#pragma omp parallel num_threads(run[THREADS]) if (many)
  for (long s = 0; s < kinds; s++)
    for (long i = 0; i < count; i++) {
      if (!arrays[3 + i]) continue;
      const long *field = own + 5 + FIELDS * i;
      block b;
      memcpy(&b, field, sizeof b);
      real *matrix = MATRIX(arrays[3 + i], field, s);
      const real scale = SCALE(field);
#pragma omp for schedule(static) nowait
      for (long k = 0; k < b.k; k += TILE) {
        const long rows = b.k - k < TILE ? b.k - k : TILE;
        if (!(own[0] >> i & 1)) memset(matrix + k * b.c, 0, rows * b.c * sizeof(real));
        sum_rows(b, k, offsets[s], offsets[s + 1], x_width, y_width, x, y, matrix, scale);
      }
    }
}

/* Every (k, c) matrix to (c, k). own: -, kinds, k, c, start and stride of the former. */
STEP(turn) {
  const long kinds = own[1], rows = own[2], columns = own[3];
  for (long s = 0; s < kinds; s++) {
    const real *from = (const real *)arrays[0] + own[4] + s * own[5];
    real *to = (real *)arrays[1] + s * rows * columns;
    if ((rows | columns) & 3)
      for (long k = 0; k < rows; k++)
        for (long c = 0; c < columns; c++) to[c * rows + k] = from[k * columns + c];
    else
      for (long c = 0; c < columns; c += 4)
        for (long k = 0; k < rows; k += 4)
          turn_four(from + k * columns + c, columns, to + c * rows + k, rows);
  }
}

/* Rows of kinds to the rows of atoms, in their first columns. own: add, width, width of y.
   arrays: kind of every atom, rows (kinds, width), y (atoms, width of y). */
STEP(spread) {
  const long width = own[1], wide = own[2];
  const long *kind = arrays[0];
#pragma omp parallel for num_threads(run[THREADS]) schedule(static) if (run[ATOMS] > 200)
  for (long n = 0; n < run[ATOMS]; n++) {
    const real *from = (const real *)arrays[1] + kind[n] * width;
    real *to = (real *)arrays[2] + n * wide;
    if (own[0] & 1)
#pragma omp simd
      for (long i = 0; i < width; i++) to[i] += from[i];
    else {
      memcpy(to, from, width * sizeof(real));
      memset(to + width, 0, (wide - width) * sizeof(real));
    }
  }
}

/* The reverse of `spread`: sums over atoms. own: add, width, width of y, kinds. */
STEP(gather) {
  const long width = own[1], wide = own[2];
  const long *kind = arrays[0];
  real *sums = arrays[2];
  if (!(own[0] & 1)) memset(sums, 0, own[3] * width * sizeof(real));
  for (long n = 0; n < run[ATOMS]; n++) {
    const real *from = (const real *)arrays[1] + n * wide;
    real *to = sums + kind[n] * width;
#pragma omp simd
    for (long i = 0; i < width; i++) to[i] += from[i];
  }
}

/* Some columns of x to some of y. own: add, widths of x and y, pieces, then (from, to, width). */
STEP(pick) {
  const long add = own[0] & 1, x_width = own[1], y_width = own[2], pieces = own[3];
#pragma omp parallel for num_threads(run[THREADS]) schedule(static) if (run[ATOMS] > 200)
  for (long n = 0; n < run[ATOMS]; n++) {
    const real *x = (const real *)arrays[0] + n * x_width;
    real *y = (real *)arrays[1] + n * y_width;
    if (!add && x_width < y_width) memset(y, 0, y_width * sizeof(real));
    for (long piece = 0; piece < pieces; piece++) {
      const long *field = own + 4 + 3 * piece;
      if (add)
#pragma omp simd
        for (long i = 0; i < field[2]; i++) y[field[1] + i] += x[field[0] + i];
      else
        memcpy(y + field[1], x + field[0], field[2] * sizeof(real));
    }
  }
}

/* own: add, numbers, which are a multiple of LANES. */
STEP(silu) {
  for (long i = 0; i < own[1]; i += LANES) {
    const vec x = AT((const real *)arrays[0] + i), value = GAIN * x * sigmoid(x);
    real *y = (real *)arrays[1] + i;
    AT(y) = own[0] & 1 ? (vec)AT(y) + value : value;
  }
}

/* arrays: x, gradient of silu(x), gradient of x. */
STEP(silu_back) {
  for (long i = 0; i < own[1]; i += LANES) {
    const vec x = AT((const real *)arrays[0] + i), g = AT((const real *)arrays[1] + i);
    const vec s = sigmoid(x), value = GAIN * g * s * (1 + x * (1 - s));
    real *out = (real *)arrays[2] + i;
    AT(out) = own[0] & 1 ? (vec)AT(out) + value : value;
  }
}
