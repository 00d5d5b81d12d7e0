/* A step of Muon: momentum, the polynomials of bayrace.train.muon, and the move of the parameters.
   REAL and LANES are set when compiling.

   A matrix has `length` rows of `width` numbers, width <= length, or is such a one turned. Gram
   matrices (width, width) are padded with zeros to whole vectors; what the polynomials put there
   meets zeros again. Nothing depends on the number of threads. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

//@ vectors
#define PAD (LANES < 4 ? 4 : LANES)
#define BLOCK 64                                  /* rows at a time, which stay in the cache */

//@ lanes
//@ tiles

typedef struct {
  real *param;
  const real *gradient;
  real *momentum;
  long count, rows, columns; /* of a parameter: several matrices, one after another */
} matrix;

typedef struct {
  double memory, scale, shrink, tiny, cushion; /* see bayrace.train.muon */
  long steps;
  const double *polynomials; /* three numbers each */
} settings;

/* a b of `rows` rows and n columns. */
static void times(const real *a, const real *b, long rows, long n, real *to) {
  product(0, (view){a, n, 1}, rows, (view){b, n, 1}, n, n, to, n, AS_IT_IS);
}

/* The part of a^T b at and above the diagonal, of (size, n) each. */
__attribute__((always_inline))
static inline void upper(const real *a, const real *b, long size, long n, real *to, finish end) {
  product(1, (view){a, 1, n}, n, (view){b, n, 1}, n, size, to, n, end);
}

/* What is above the diagonal, below it too: exactly, or rounding would grow. */
static void mirror(real *a, long n) {
  for (long r = 0; r < n; r += 4) {
    UNROLL for (int i = 1; i < 4; i++)
      UNROLL for (int j = 0; j < i; j++) a[(r + i) * n + r + j] = a[(r + j) * n + r + i];
    for (long c = r + 4; c < n; c += 4) turn_four(a + r * n + c, n, a + c * n + r, n);
  }
}

/* The same after `upper` of a and a: there what it has computed below the diagonal is exact. */
static void mirror_rest(real *a, long n) {
  for (long r = 0; r < n; r += 4)
    for (long c = (r / PAD + 1) * PAD; c < n; c += 4) turn_four(a + r * n + c, n, a + c * n + r, n);
}

/* a^T a, of (n, n). */
static void square(const real *a, long n, real *to) {
  upper(a, a, n, n, to, AS_IT_IS);
  mirror_rest(to, n);
}

/* The factor of a polynomial: constant + linear gram + quadratic gram^2. */
static void factor(const double *polynomial, const real *gram, long n, real *to) {
  upper(gram, gram, n, n, to,
        (finish){.old = gram, .linear = (real)polynomial[1], .quadratic = (real)polynomial[2]});
  mirror_rest(to, n);
  for (long i = 0; i < n; i++) to[i * n + i] += (real)polynomial[0];
}

/* The same where the square is known, and is replaced. */
static void first_factor(const double *polynomial, const real *gram, long n, real *power) {
  const real linear = (real)polynomial[1], quadratic = (real)polynomial[2];
  for (long i = 0; i < n * n; i += LANES)
    AT(power + i) = quadratic * AT(power + i) + linear * AT(gram + i);
  for (long i = 0; i < n; i++) power[i * n + i] += (real)polynomial[0];
}

/* Divide a Gram matrix by a bound of its largest eigenvalue, which is returned; also its square. */
static double normalise(const settings *own, real *gram, real *power, long n) {
  const long all = n * n;
  real trace = 0;
  vec norms = {0};
  for (long i = 0; i < n; i++) trace += gram[i * n + i];
  trace = trace > (real)own->tiny ? trace : (real)own->tiny;
  const real first = 1 / trace; /* or fourth powers leave the range */
  for (long i = 0; i < all; i += LANES) AT(gram + i) *= first;
  square(gram, n, power);
  for (long i = 0; i < all; i += LANES) norms += AT(power + i) * AT(power + i);
  real norm = (real)sqrt((double)total(norms)); /* the root of the trace of gram^4 */
  norm = norm > (real)own->tiny ? norm : (real)own->tiny;
  const real largest = (real)(sqrt((double)norm) * own->cushion), less = 1 / largest;
  for (long i = 0; i < all; i += LANES) AT(gram + i) *= less, AT(power + i) *= less * less;
  return (double)trace * (double)largest;
}

/* A polynomial of the Gram matrix that approximates its inverse square root, times `scale`; work
   has room for five matrices, the first of which is the Gram matrix. Returns the result in it.
   All these matrices commute, but for rounding, of which small eigenvalues must not see much:
   f s f is computed as (s f)^T f, and the product of all f is not made symmetric. */
static real *inverse_root(const settings *own, real *work, long n, double scale) {
  const long all = n * n;
  real *gram = work, *power = work + all, *whole = work + 2 * all, *spare = work + 3 * all;
  real *other = work + 4 * all;
  const double size = normalise(own, gram, power, n);
  for (long step = 0; step < own->steps; step++) {
    if (step) factor(own->polynomials + 3 * step, gram, n, power);
    else first_factor(own->polynomials, gram, n, power);
    if (step) {
      times(whole, power, n, n, other);
      real *old = whole;
      whole = other, other = old;
    } else
      memcpy(whole, power, all * sizeof(real));
    if (step < own->steps - 1) {
      times(gram, power, n, n, spare);
      upper(spare, power, n, n, gram, AS_IT_IS);
      mirror(gram, n);
    }
  }
  const real last = (real)(scale / sqrt(size));
  for (long i = 0; i < all; i += LANES) AT(whole + i) *= last;
  return whole;
}

/* Gradient and momentum, ahead of the step (Nesterov); `move` the momentum first. */
#define AHEAD(type, i)                                                  \
  {                                                                     \
    const type slope = *(type *)(gradient + i);                         \
    type old = *(type *)(momentum + i);                                 \
    if (move) *(type *)(momentum + i) = old += rest * (slope - old);    \
    *(type *)(to + i) = slope + memory * (old - slope);                 \
  }

static inline void ahead(const matrix *m, const settings *own, long start, long count, int move,
                         real *to) {
  const real memory = (real)own->memory, rest = (real)(1 - own->memory);
  const real *gradient = m->gradient + start;
  real *momentum = m->momentum + start;
  long i = 0;
  for (; i + LANES <= count; i += LANES) AHEAD(loose, i)
  for (; i < count; i++) AHEAD(real, i)
}

/* `size` rows of n numbers, or columns where the matrix is wide: then also as they are, (n, BLOCK). */
static void load(const matrix *m, const settings *own, long begin, long size, long n, int move,
                 real *block, real *wide) {
  const long width = m->rows < m->columns ? m->rows : m->columns;
  if (m->rows >= m->columns) {
    if (n == width) ahead(m, own, begin * n, size * n, move, block);
    else
      for (long i = 0; i < size; i++) ahead(m, own, (begin + i) * width, width, move, block + i * n);
    return;
  }
  for (long j = 0; j < width; j++)
    ahead(m, own, j * m->columns + begin, size, move, wide + j * BLOCK);
  if (!move) return;
  for (long j = 0; j < n; j += 4)
    for (long i = 0; i < BLOCK; i += 4) turn_four(wide + j * BLOCK + i, BLOCK, block + i * n + j, n);
}

static inline void subtract(real *param, const real *step, long count, real shrink) {
#pragma omp simd
  for (long i = 0; i < count; i++) param[i] = shrink * param[i] - step[i];
}

/* Rows or columns of the parameters from `begin` on, less their step: root^T wide, or block root. */
static void apply(const matrix *m, const settings *own, const real *root, long begin, long size,
                  long n, const real *block, const real *wide, real *step) {
  const real shrink = (real)own->shrink;
  const long width = m->rows < m->columns ? m->rows : m->columns;
  real *param = m->param + begin * (m->rows < m->columns ? 1 : width);
  const int whole = n == width && size == BLOCK;
  finish end = {.old = param, .linear = shrink, .quadratic = -1};
  if (m->rows < m->columns) {
    const view left = {root, 1, n}, right = {wide, BLOCK, 1};
    if (whole) return product(0, left, n, right, BLOCK, n, param, m->columns, end);
    product(0, left, n, right, BLOCK, n, step, BLOCK, AS_IT_IS);
    for (long j = 0; j < width; j++)
      subtract(param + j * m->columns, step + j * BLOCK, size, shrink);
    return;
  }
  if (whole) {
    end.soon = (const char *)(param + BLOCK * n);
    end.other = BLOCK * n * sizeof(real) / 2;
    end.until = end.soon + end.other;
    return product(0, (view){block, n, 1}, BLOCK, (view){root, n, 1}, n, n, param, n, end);
  }
  times(block, root, size, n, step);
  for (long i = 0; i < size; i++) subtract(param + i * width, step + i * n, width, shrink);
}

static long padded(const matrix *m) {
  const long width = m->rows < m->columns ? m->rows : m->columns;
  return (width + PAD - 1) / PAD * PAD;
}

/* Square matrices are multiplied by the factors themselves: fewer products than for the root. */
static void one_square(const matrix *m, const settings *own, real *work) {
  const long n = padded(m), all = n * n, width = m->columns;
  real *x = work, *gram = work + all, *power = work + 2 * all, *other = work + 3 * all;
  memset(x, 0, all * sizeof(real));
  if (n == width) ahead(m, own, 0, all, 1, x);
  else
    for (long i = 0; i < width; i++) ahead(m, own, i * width, width, 1, x + i * n);
  square(x, n, gram);
  const double size = normalise(own, gram, power, n);
  const real less = (real)(1 / sqrt(size));
  for (long i = 0; i < all; i += LANES) AT(x + i) *= less;
  for (long step = 0; step < own->steps; step++) {
    if (step) square(x, n, gram), factor(own->polynomials + 3 * step, gram, n, power);
    else first_factor(own->polynomials, gram, n, power);
    if (step == own->steps - 1) break;
    times(x, power, n, n, other);
    real *old = x;
    x = other, other = old;
  }
  const real scale = (real)(own->scale * sqrt((double)width)), shrink = (real)own->shrink;
  const view left = {x, n, 1}, right = {power, n, 1};
  const finish end = {.old = m->param, .linear = shrink, .quadratic = -scale};
  if (n == width) return product(0, left, n, right, n, n, m->param, n, end);
  times(x, power, n, n, other);
  for (long i = 0; i < all; i += LANES) AT(other + i) *= scale;
  for (long i = 0; i < width; i++) subtract(m->param + i * width, other + i * n, width, shrink);
}

static void one(const matrix *m, const settings *own, real *work) {
  const long n = padded(m), length = m->rows < m->columns ? m->columns : m->rows;
  real *block = work + 5 * n * n, *wide = block + BLOCK * n, *step = wide + BLOCK * n;
  if (m->rows == m->columns) {
    one_square(m, own, work);
    return;
  }
  memset(work, 0, n * n * sizeof(real));
  memset(block, 0, 2 * BLOCK * n * sizeof(real));
  for (long begin = 0; begin < length; begin += BLOCK) {
    const long size = length - begin < BLOCK ? length - begin : BLOCK;
    if (size < BLOCK) memset(block, 0, 2 * BLOCK * n * sizeof(real));
    load(m, own, begin, size, n, 1, block, wide);
    const long next = (begin + size) * n, left = (length - begin - size) * n;
    const char *soon = (const char *)(m->gradient + next);
    upper(block, block, size, n, work,
          (finish){.add = 1,
                   .soon = soon,
                   .until = soon + (left < BLOCK * n ? left : BLOCK * n) * sizeof(real),
                   .other = (const char *)(m->momentum + next) - soon});
  }
  mirror_rest(work, n);
  const real *root = inverse_root(own, work, n, own->scale * sqrt((double)length));
  for (long begin = 0; begin < length; begin += BLOCK) {
    const long size = length - begin < BLOCK ? length - begin : BLOCK;
    load(m, own, begin, size, n, 0, block, wide);
    apply(m, own, root, begin, size, n, block, wide, step);
  }
}

/* Every matrix of the parameters, to be freed; null without memory for them. */
static matrix *listed(long count, const matrix *params, long *found) {
  *found = 0;
  for (long i = 0; i < count; i++) *found += params[i].count;
  matrix *all = malloc(*found * sizeof(matrix)), *next = all;
  for (long i = 0; all && i < count; i++) {
    const long size = params[i].rows * params[i].columns;
    for (long k = 0; k < params[i].count; k++, next++) {
      *next = params[i];
      next->param += k * size, next->gradient += k * size, next->momentum += k * size;
    }
  }
  return all;
}

/* numbers: memory, scale, shrink, tiny, cushion, then the polynomials. Returns 0, or 1 where there
   is no memory for the work. */
int step(long count, const matrix *params, long polynomials, const double *numbers, long threads) {
  const settings own = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
                        polynomials, numbers + 5};
  long widest = 0, every = 0;
  for (long i = 0; i < count; i++) {
    const long n = padded(params + i);
    widest = n > widest ? n : widest;
  }
  const long room = widest * (5 * widest + 3 * BLOCK);
  real *work = aligned_alloc(64, (threads * room * sizeof(real) / 64 + 1) * 64);
  matrix *matrices = listed(count, params, &every);
  const int failed = !work || !matrices;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (!failed)
  for (long i = 0; i < (failed ? 0 : every); i++) {
    long thread = 0;
#ifdef _OPENMP
    extern int omp_get_thread_num(void);
    thread = omp_get_thread_num();
#endif
    one(matrices + i, &own, work + thread * room);
  }
  free(matrices);
  free(work);
  return failed;
}
