/* The end of a readout: activation, the numbers that are linear in it, and gated quadrupoles.

   hidden = GAIN silu(pre), numbers[s] = sum_k hidden[k] scalars[k, s] / sqrt(K),
   gates = hidden gating / sqrt(K), numbers[S + 5 q + m] = sum_i channels[m, q, i] gates[q, i] / 4.
   own: adds, K, S, quadrupoles Q, width of numbers, place and width of the kept hidden numbers,
   their factor, the derivative of the energy by the first number. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

//@ vectors
#define STEP(name) void name(const long *run, const long *own, void *const *arrays)
#define GAIN ((real)1.6765) /* of SiLU, as in bayrace.nn.radial */
#define EACH 16 /* gated channels of a quadrupole */
#define MOST 1024 /* hidden or gated numbers; bayrace.models.race.tape refuses more */

enum { THREADS, ATOMS, PAIRS, EDGES, STRUCTURES };

static inline double number(long bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

//@ sigmoid
//@ threads

/* LANES columns of hidden (K) times a matrix whose rows are `stride` apart. */
static inline vec columns(const real *hidden, const real *matrix, long K, long stride) {
  vec even = {0}, odd = {0};
  for (long k = 0; k < K; k += 2) {
    even += hidden[k] * AT(matrix + k * stride);
    odd += hidden[k + 1] * AT(matrix + (k + 1) * stride);
  }
  return even + odd;
}

/* A matrix (K, S) with zeros behind every row, so that they are whole vectors; to be freed. */
static real *padded(const real *matrix, long K, long S, long wide) {
  real *copy = calloc(K * wide, sizeof(real));
  for (long k = 0; k < K; k++) memcpy(copy + k * wide, matrix + k * S, S * sizeof(real));
  return copy;
}

/* arrays: pre (atoms, K), scalars (K, S), channels (atoms, 5, G), gating (K, G); then numbers,
   kept hidden numbers, and the sigmoids of pre. K and G are multiples of LANES. */
STEP(readout) {
  const long K = own[1], S = own[2], Q = own[3], wide = own[4], G = Q * EACH;
  const real factor = (real)number(own[7]), norm = 1 / (real)sqrt((double)K);
  const real *gating = arrays[3];
  const long stride = (S + LANES - 1) / LANES * LANES;
  real *scalars = padded(arrays[1], K, S, stride);
#pragma omp parallel for num_threads(run[THREADS]) schedule(static) if (run[ATOMS] > 200)
  for (long n = 0; n < run[ATOMS]; n++) {
    const real *pre = (const real *)arrays[0] + n * K;
    real *numbers = (real *)arrays[4] + n * wide, *kept = (real *)arrays[5] + n * own[6] + own[5];
    real *sigmoids = (real *)arrays[6] + n * K, hidden[MOST], gates[MOST];
    if (!(own[0] & 1)) memset(numbers, 0, wide * sizeof(real));
    for (long k = 0; k < K; k += LANES) {
      const vec x = AT(pre + k), s = sigmoid(x), value = GAIN * x * s;
      AT(sigmoids + k) = s;
      AT(hidden + k) = value;
      AT(kept + k) = factor * value;
    }
    for (long s = 0; s < S; s += LANES) {
      const vec sums = columns(hidden, scalars + s, K, stride);
      for (long i = 0; i < LANES && s + i < S; i++) numbers[s + i] += norm * sums[i];
    }
    for (long g = 0; g < G; g += LANES) AT(gates + g) = columns(hidden, gating + g, K, G);
    for (long q = 0; q < Q; q++)
      for (long m = 0; m < 5; m++) {
        const real *channels = (const real *)arrays[2] + (n * 5 + m) * G + q * EACH;
        real sum = 0;
        for (long i = 0; i < EACH; i++) sum += channels[i] * gates[q * EACH + i];
        numbers[S + 5 * q + m] += norm / 4 * sum;
      }
  }
  free(scalars);
}

/* The gradient of the energy by pre. arrays: pre, sigmoids, scalars, then the gradient. */
STEP(readout_back) {
  const long K = own[1], S = own[2];
  const real slope = (real)(number(own[8]) / sqrt((double)K)) * GAIN;
  const real *scalars = arrays[2];
  real first[MOST]; /* the column of the energy */
  for (long k = 0; k < K; k++) first[k] = slope * scalars[k * S];
#pragma omp parallel for num_threads(run[THREADS]) schedule(static) if (run[ATOMS] > 200)
  for (long n = 0; n < run[ATOMS]; n++)
    for (long k = 0; k < K; k += LANES) {
      const long i = n * K + k;
      const vec x = AT((const real *)arrays[0] + i), s = AT((const real *)arrays[1] + i);
      const vec value = AT(first + k) * s * (1 + x * (1 - s));
      real *out = (real *)arrays[3] + i;
      AT(out) = own[0] & 1 ? (vec)AT(out) + value : value;
    }
}

/* Gradients of the arguments of `readout`, given those of the numbers and, `v`, those of the
   result of `readout_back`. arrays: pre, sigmoids, scalars, channels, gating, gradient of numbers,
   v; then gradients of pre, scalars, channels and gating. */
STEP(readout_reverse) {
  const long K = own[1], S = own[2], Q = own[3], wide = own[4], G = Q * EACH;
  const real norm = 1 / (real)sqrt((double)K), slope = (real)number(own[8]) * norm * GAIN;
  const real *scalars = arrays[2], *gating = arrays[4];
  real *all_scalars = arrays[8], *all_gating = arrays[10];
  const long threads = threads_for(run, run[ATOMS]);
  real *spare = spare_sums(threads, K * S), *spare_gating = G ? spare_sums(threads, K * G) : 0;
  if (!(own[0] & 2)) memset(all_scalars, 0, K * S * sizeof(real));
  if (G && !(own[0] & 8)) memset(all_gating, 0, K * G * sizeof(real));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long thread = 0; thread < threads; thread++) {
    real *by_scalars = part(thread, K * S, all_scalars, spare);
    real *by_gating = part(thread, K * G, all_gating, spare_gating);
    const long end = run[ATOMS] * (thread + 1) / threads;
    for (long n = run[ATOMS] * thread / threads; n < end; n++) {
      const real *pre = (const real *)arrays[0] + n * K, *sigmoid = (const real *)arrays[1] + n * K;
      const real *g = (const real *)arrays[5] + n * wide, *v = (const real *)arrays[6] + n * K;
      real *by_pre = (real *)arrays[7] + n * K, gates[MOST], by_gates[MOST];
      memset(gates, 0, G * sizeof(real));
      memset(by_gates, 0, G * sizeof(real));
      for (long k = 0; k < K; k++) {
        const real hidden = norm * GAIN * pre[k] * sigmoid[k];
#pragma omp simd
        for (long i = 0; i < G; i++) gates[i] += hidden * gating[k * G + i];
      }
      for (long q = 0; q < Q; q++)
        for (long m = 0; m < 5; m++) {
          const long start = (n * 5 + m) * G + q * EACH;
          const real *channels = (const real *)arrays[3] + start, weight = g[S + 5 * q + m] / 4;
          real *by_channels = (real *)arrays[9] + start;
          for (long i = 0; i < EACH; i++) {
            const real value = weight * gates[q * EACH + i];
            by_gates[q * EACH + i] += norm * weight * channels[i];
            by_channels[i] = own[0] & 4 ? by_channels[i] + value : value;
          }
        }
      for (long k = 0; k < K; k++) {
        const real s = sigmoid[k], x = pre[k], hidden = GAIN * x * s;
        const real first = s * (1 + x * (1 - s)), second = s * (1 - s) * (2 + x * (1 - 2 * s));
        real by_hidden = 0;
        for (long i = 0; i < S; i++) {
          by_hidden += norm * g[i] * scalars[k * S + i];
          by_scalars[k * S + i] += norm * hidden * g[i];
        }
#pragma omp simd reduction(+ : by_hidden)
        for (long i = 0; i < G; i++) {
          by_hidden += by_gates[i] * gating[k * G + i];
          by_gating[k * G + i] += hidden * by_gates[i];
        }
        by_scalars[k * S] += slope * first * v[k];
        const real value = GAIN * first * by_hidden + slope * scalars[k * S] * second * v[k];
        by_pre[k] = own[0] & 1 ? by_pre[k] + value : value;
      }
    }
  }
  merge(threads, K * S, all_scalars, spare);
  merge(threads, K * G, all_gating, spare_gating);
}
