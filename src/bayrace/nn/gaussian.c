/* Covariances exp(k I + Q) of forces, with Q from five numbers as in bayrace.nn.covariance.

   numbers (n, 6): k, then the numbers of Q, whose length is limited softly. Everything inside is
   computed in double precision by the eigenvalues of Q. */

#include <math.h>

typedef REAL real;
#define ROOT 0.70710678118654752440
#define SIXTH 0.40824829046386301637

typedef struct {
  double values[3], off[3];  /* the diagonal of Q, and what is between the other two than k */
  double level, vectors[3][3]; /* vectors[i] belongs to values[i] once Q is diagonal */
  double size, scale, slope;              /* of the limit: q = scale * given */
  int inside;                             /* k is not clamped */
} spectrum;

#define BLOCK 8 /* matrices side by side: one rotation alone would wait for its divisions */
#define EACH _Pragma("omp simd") for (int i = 0; i < BLOCK; i++)

/* Jacobi's rotations of BLOCK symmetric matrices, until nothing is left beside the diagonals. Each
   is rotated as if it were alone; vectors[i] are turned along, from unit vectors. */
__attribute__((always_inline)) static inline void diagonalise(int with_vectors, spectrum *out) {
  double d[3][BLOCK], off[3][BLOCK], v[9][BLOCK];
  for (int i = 0; i < BLOCK; i++) {
    for (int k = 0; k < 3; k++) d[k][i] = out[i].values[k], off[k][i] = out[i].off[k];
    for (int k = 0; k < 9; k++) v[k][i] = k % 4 == 0;
  }
  for (int sweep = 0; sweep < 12; sweep++) {
    double left[BLOCK], most = 0;
    EACH left[i] = off[0][i] * off[0][i] + off[1][i] * off[1][i] + off[2][i] * off[2][i];
    for (int i = 0; i < BLOCK; i++) most = left[i] > most ? left[i] : most;
    if (most < 1e-36) break;
    _Pragma("GCC unroll 3") for (int k = 2; k >= 0; k--) {
      const int p = k == 0, q = 2 - (k == 2);
      double c[BLOCK], s[BLOCK];
      EACH {
        const double between = off[k][i], x = off[q][i], y = off[p][i];
        const double theta = (d[q][i] - d[p][i]) / (2 * between);
        const double root = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
        const double t = left[i] < 1e-36 ? 0 : fabs(between) < 1e-300 ? 0 : root;
        c[i] = 1 / sqrt(t * t + 1), s[i] = t * c[i];
        d[p][i] -= t * between;
        d[q][i] += t * between;
        off[k][i] = t == 0 ? between : 0;
        off[q][i] = c[i] * x - s[i] * y;
        off[p][i] = s[i] * x + c[i] * y;
      }
      if (with_vectors)
        for (int j = 0; j < 3; j++)
          EACH {
            const double x = v[3 * p + j][i], y = v[3 * q + j][i];
            v[3 * p + j][i] = c[i] * x - s[i] * y;
            v[3 * q + j][i] = s[i] * x + c[i] * y;
          }
    }
  }
  for (int i = 0; i < BLOCK; i++) {
    for (int k = 0; k < 3; k++) out[i].values[k] = d[k][i];
    if (with_vectors)
      for (int k = 0; k < 9; k++) out[i].vectors[k / 3][k % 3] = v[k][i];
  }
}

/* Of symmetric matrices (n, 3, 3), the largest first; in units of the largest entry inside. */
static void eigenvalues(long n, const double *matrices, double *out) {
  spectrum s[BLOCK];
  for (long left = n; left > 0; left -= BLOCK, matrices += 9 * BLOCK, out += 3 * BLOCK) {
    double unit[BLOCK];
    for (int i = 0; i < BLOCK; i++) { /* after the last one, that again */
      const double *m = matrices + 9 * (i < left ? i : left - 1);
      unit[i] = 0;
      for (int k = 0; k < 9; k++) unit[i] = fabs(m[k]) > unit[i] ? fabs(m[k]) : unit[i];
      const double scale = unit[i] > 0 ? unit[i] : 1;
      for (int k = 0; k < 3; k++) s[i].values[k] = m[4 * k] / scale;
      s[i].off[0] = m[5] / scale, s[i].off[1] = m[2] / scale, s[i].off[2] = m[1] / scale;
    }
    diagonalise(0, s);
    for (int i = 0; i < BLOCK && i < left; i++) {
      const double x = s[i].values[0], y = s[i].values[1], z = s[i].values[2];
      out[3 * i] = unit[i] * fmax(x, fmax(y, z));
      out[3 * i + 1] = unit[i] * fmax(fmin(x, y), fmin(fmax(x, y), z));
      out[3 * i + 2] = unit[i] * fmin(x, fmin(y, z));
    }
  }
}

/* Of covariances (n, 3, 3): eigenvalues (n, 3), the σ of the components (n, 3), their root mean
   square (n,), and the σ in the worst direction (n,). */
void spreads(long n, const double *covariances, double *values, double *components, double *level,
             double *worst) {
  eigenvalues(n, covariances, values);
  for (long place = 0; place < n; place++, covariances += 9) {
    for (int i = 0; i < 3; i++) components[3 * place + i] = sqrt(covariances[4 * i]);
    level[place] = sqrt((covariances[0] + covariances[4] + covariances[8]) / 3);
    worst[place] = sqrt(fmax(values[3 * place], 0));
  }
}

/* P(R > r) of the length R of Student's t, four degrees of freedom and this variance in every
   direction, r from its square; see bayrace.simulate.stop.student_tail. */
static inline double beyond(double square, double variance) {
  const double outside = 2 * variance / (square + 2 * variance);
  const double d = outside / (1 + sqrt(1 - outside));
  return d * d * (7.5 - d * (12.5 - d * (7.5 - 1.5 * d)));
}

/* P(|e| > error) of Student's errors whose covariances have the eigenvalues (n, 3), the largest
   first, (n,); the upper bound by the largest where that is at most `negligible`. Else an average
   over directions with squared components (3, k) and weights (k,): the first set whose `most` the
   ratio of the eigenvalues does not exceed. Returns 1 - prod(1 - P), as if errors were independent. */
static double exceedance(long n, const double *values, double error, double negligible, long sets,
                         const double *most, const long *size, const double *const *squares,
                         const double *const *weights, double *out) {
  double none = 0; /* logarithm of the probability */
  for (long place = 0; place < n; place++, values += 3) {
    const double a = fmax(values[0], 0), b = fmax(values[1], 0), c = fmax(values[2], 0);
    double sum = beyond(error * error, a);
    if (sum > negligible) {
      long set = 0;
      while (set < sets - 1 && !(a / c <= most[set])) set++;
      const long count = size[set];
      const double *x = squares[set], *y = x + count, *z = y + count, *weight = weights[set];
      sum = 0;
#pragma omp simd reduction(+ : sum)
      for (long k = 0; k < count; k++)
        sum += weight[k] * beyond(error * error, a * x[k] + b * y[k] + c * z[k]);
    }
    out[place] = sum;
    none += log1p(sum < 1 ? -sum : -1);
  }
  return -expm1(none);
}

/* What `spreads` and `exceedance` say, one array after another; (n, 9) numbers in all. */
double assess(long n, const double *covariances, double error, double negligible, long sets,
              const double *most, const long *size, const double *const *squares,
              const double *const *weights, double *out) {
  spreads(n, covariances, out, out + 3 * n, out + 6 * n, out + 7 * n);
  return exceedance(n, out, error, negligible, sets, most, size, squares, weights, out + 8 * n);
}

/* Of BLOCK atoms, if `left` are at least as many. */
static void read_numbers(long left, const real *numbers, double low, double high, double limit,
                         spectrum *out) {
  for (int i = 0; i < BLOCK; i++) { /* after the last one, that again */
    const real *given = numbers + 6 * (i < left ? i : left - 1);
    spectrum *s = out + i;
    double square = 1e-12, m[5];
    s->inside = given[0] >= (real)low && given[0] <= (real)high;
    s->level = given[0] < low ? low : given[0] > high ? high : given[0];
    for (int k = 0; k < 5; k++) square += (double)given[1 + k] * given[1 + k];
    s->size = sqrt(square);
    const double bent = tanh(s->size / limit);
    s->scale = limit * bent / s->size;
    s->slope = (1 - bent * bent) / s->size - limit * bent / square;
    for (int k = 0; k < 5; k++) m[k] = s->scale * given[1 + k];
    s->values[0] = -SIXTH * m[2] - ROOT * m[4];
    s->values[1] = 2 * SIXTH * m[2];
    s->values[2] = -SIXTH * m[2] + ROOT * m[4];
    s->off[0] = ROOT * m[3], s->off[1] = ROOT * m[0], s->off[2] = ROOT * m[1];
  }
  diagonalise(1, out);
}

void exponential(long n, double low, double high, double limit, const real *numbers, real *out) {
  spectrum block[BLOCK];
  for (long atom = 0; atom < n; atom++) {
    if (atom % BLOCK == 0) read_numbers(n - atom, numbers + 6 * atom, low, high, limit, block);
    const spectrum s = block[atom % BLOCK];
    double factor[3];
    for (int i = 0; i < 3; i++) factor[i] = exp(s.level + s.values[i]);
    for (int a = 0; a < 3; a++)
      for (int b = 0; b < 3; b++) {
        double sum = 0;
        for (int i = 0; i < 3; i++) sum += factor[i] * s.vectors[i][a] * s.vectors[i][b];
        out[9 * atom + 3 * a + b] = (real)sum;
      }
  }
}

/* value = error^T exp(-k I - Q) error and its gradients. */
void quadratic(long n, double low, double high, double limit, const real *numbers,
               const real *errors, real *values, real *by_numbers, real *by_errors) {
  spectrum block[BLOCK];
  for (long atom = 0; atom < n; atom++) {
    const real *given = numbers + 6 * atom, *error = errors + 3 * atom;
    if (atom % BLOCK == 0) read_numbers(n - atom, given, low, high, limit, block);
    const spectrum s = block[atom % BLOCK];
    double seen[3], factor[3], total = 0, g[3][3] = {{0}}, by[5], along = 0;
    for (int i = 0; i < 3; i++) {
      seen[i] = factor[i] = 0;
      for (int k = 0; k < 3; k++) seen[i] += s.vectors[i][k] * error[k];
      factor[i] = exp(-s.level - s.values[i]);
      total += factor[i] * seen[i] * seen[i];
    }
    for (int k = 0; k < 3; k++) {
      double sum = 0;
      for (int i = 0; i < 3; i++) sum += factor[i] * seen[i] * s.vectors[i][k];
      by_errors[3 * atom + k] = (real)(2 * sum);
    }
    for (int i = 0; i < 3; i++)
      for (int j = 0; j < 3; j++) { /* divided differences of exp(-x) */
        const double gap = s.values[i] - s.values[j];
        const double f = fabs(gap) < 1e-9 ? -factor[j] : factor[j] * expm1(-gap) / gap;
        const double weight = f * seen[i] * seen[j];
        for (int a = 0; a < 3; a++)
          for (int b = 0; b < 3; b++) g[a][b] += weight * s.vectors[i][a] * s.vectors[j][b];
      }
    by[0] = ROOT * (g[0][2] + g[2][0]);
    by[1] = ROOT * (g[0][1] + g[1][0]);
    by[2] = SIXTH * (2 * g[1][1] - g[0][0] - g[2][2]);
    by[3] = ROOT * (g[1][2] + g[2][1]);
    by[4] = ROOT * (g[2][2] - g[0][0]);
    for (int i = 0; i < 5; i++) along += by[i] * given[1 + i];
    values[atom] = (real)total;
    by_numbers[6 * atom] = s.inside ? (real)-total : 0;
    for (int i = 0; i < 5; i++)
      by_numbers[6 * atom + 1 + i] =
          (real)(s.scale * by[i] + along * s.slope / s.size * given[1 + i]);
  }
}
