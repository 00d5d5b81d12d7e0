/* Covariances exp(k I + Q) of forces, with Q from five numbers as in bayrace.nn.covariance.

   numbers (n, 6): k, then the numbers of Q, whose length is limited softly. Everything inside is
   computed in double precision by the eigenvalues of Q. */

#include <math.h>

typedef REAL real;
#define ROOT 0.70710678118654752440
#define SIXTH 0.40824829046386301637

typedef struct {
  double level, values[3], vectors[3][3]; /* vectors[i] belongs to values[i] */
  double size, scale, slope;              /* of the limit: q = scale * given */
  int inside;                             /* k is not clamped */
} spectrum;

/* Jacobi's rotations of a symmetric matrix. */
static void diagonalise(double a[3][3], spectrum *out) {
  double v[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
  for (int sweep = 0; sweep < 12; sweep++) {
    const double off = a[0][1] * a[0][1] + a[0][2] * a[0][2] + a[1][2] * a[1][2];
    if (off < 1e-36) break;
    for (int p = 0; p < 2; p++)
      for (int q = p + 1; q < 3; q++) {
        if (fabs(a[p][q]) < 1e-300) continue;
        const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
        const double c = 1 / sqrt(t * t + 1), s = t * c;
        for (int k = 0; k < 3; k++) {
          const double x = a[k][p], y = a[k][q];
          a[k][p] = c * x - s * y;
          a[k][q] = s * x + c * y;
        }
        for (int k = 0; k < 3; k++) {
          const double x = a[p][k], y = a[q][k];
          a[p][k] = c * x - s * y;
          a[q][k] = s * x + c * y;
        }
        for (int k = 0; k < 3; k++) {
          const double x = v[p][k], y = v[q][k];
          v[p][k] = c * x - s * y;
          v[q][k] = s * x + c * y;
        }
      }
  }
  for (int i = 0; i < 3; i++) {
    out->values[i] = a[i][i];
    for (int k = 0; k < 3; k++) out->vectors[i][k] = v[i][k];
  }
}

/* Of symmetric matrices (n, 3, 3), the largest first; in units of the largest entry inside. */
void eigenvalues(long n, const double *matrices, double *out) {
  for (long place = 0; place < n; place++, matrices += 9, out += 3) {
    double a[3][3], unit = 0;
    for (int i = 0; i < 9; i++) unit = fabs(matrices[i]) > unit ? fabs(matrices[i]) : unit;
    for (int i = 0; i < 9; i++) a[i / 3][i % 3] = unit > 0 ? matrices[i] / unit : 0;
    spectrum s;
    diagonalise(a, &s);
    const double x = s.values[0], y = s.values[1], z = s.values[2];
    const double high = fmax(x, fmax(y, z)), low = fmin(x, fmin(y, z));
    out[0] = unit * high;
    out[1] = unit * fmax(fmin(x, y), fmin(fmax(x, y), z));
    out[2] = unit * low;
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

/* P(R > r) of the length R of a standard normal vector. */
static double beyond(double r) {
  const double inside = r < 40 ? r : 40; /* beyond, exp(-r²/2) is 0 */
  return erfc(ROOT * inside) + 0.79788456080286535588 * inside * exp(-inside * inside / 2);
}

/* P(|e| > error) of Gaussian errors whose covariances have the eigenvalues (n, 3), the largest
   first, (n,); the upper bound by the largest where that is at most `negligible`. Else an average
   over directions with squared components (k, 3) and weights (k,): the first set whose `most` the
   ratio of the eigenvalues does not exceed. Returns 1 - prod(1 - P), as if errors were independent. */
double exceedance(long n, const double *values, double error, double negligible, long sets,
                const double *most, const long *size, const double *const *squares,
                const double *const *weights, double *out) {
  double none = 0; /* logarithm of the probability */
  for (long place = 0; place < n; place++, values += 3) {
    const double a = fmax(values[0], 0), b = fmax(values[1], 0), c = fmax(values[2], 0);
    double sum = beyond(error / sqrt(a));
    if (sum > negligible) {
      long set = 0;
      while (set < sets - 1 && !(a / c <= most[set])) set++;
      const double *u = squares[set], *weight = weights[set];
      sum = 0;
      for (long k = 0; k < size[set]; k++, u += 3)
        sum += weight[k] * beyond(error / sqrt(a * u[0] + b * u[1] + c * u[2]));
    }
    out[place] = sum;
    none += log1p(sum < 1 ? -sum : -1);
  }
  return -expm1(none);
}

static spectrum read_numbers(const real *given, double low, double high, double limit) {
  spectrum s;
  double square = 1e-12, m[5];
  s.inside = given[0] >= (real)low && given[0] <= (real)high;
  s.level = given[0] < low ? low : given[0] > high ? high : given[0];
  for (int i = 0; i < 5; i++) square += (double)given[1 + i] * given[1 + i];
  s.size = sqrt(square);
  const double bent = tanh(s.size / limit);
  s.scale = limit * bent / s.size;
  s.slope = (1 - bent * bent) / s.size - limit * bent / square;
  for (int i = 0; i < 5; i++) m[i] = s.scale * given[1 + i];
  double q[3][3];
  q[0][0] = -SIXTH * m[2] - ROOT * m[4];
  q[1][1] = 2 * SIXTH * m[2];
  q[2][2] = -SIXTH * m[2] + ROOT * m[4];
  q[0][2] = q[2][0] = ROOT * m[0];
  q[0][1] = q[1][0] = ROOT * m[1];
  q[1][2] = q[2][1] = ROOT * m[3];
  diagonalise(q, &s);
  return s;
}

void exponential(long n, double low, double high, double limit, const real *numbers, real *out) {
  for (long atom = 0; atom < n; atom++) {
    const spectrum s = read_numbers(numbers + 6 * atom, low, high, limit);
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
  for (long atom = 0; atom < n; atom++) {
    const real *given = numbers + 6 * atom, *error = errors + 3 * atom;
    const spectrum s = read_numbers(given, low, high, limit);
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
