/* Passes of the fused edge convolution; codegen.py fills in the lines marked with @.
   Each is compiled on its own, because compilers take time for long functions and work in parallel.

   x (atoms, INPUTS, channels), y (pairs, HARMONICS), r (pairs, PATHS, channels),
   g and out (atoms, ROWS, channels); edges of receiver n are first[n] .. first[n + 1].
   y belongs to the first edge of a pair, forth[pair]; the other sees the opposite direction, where
   harmonics of odd degree change their sign.
   vx, vy, vr are cotangents of the gradients of x, y, r. */

#include <string.h>

//@ vectors
//@ lanes

static const real SIGN[2][HARMONICS] = {
//@ signs
};

static inline void couple(const real *y_pair, int side, real *t) {
  real y[HARMONICS];
  for (int i = 0; i < HARMONICS; i++) y[i] = SIGN[side][i] * y_pair[i];
//@ couple
}

static inline void put(real *target, vec value, int add) {
  if (add) value += AT(target);
  AT(target) = value;
}

#ifdef PASS_forward
void forward(long threads, long atoms, long channels, const long *first, const long *sender,
             const long *pair, const long *forth, const real *x, const real *y, const real *r,
             real *out) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
  for (long n = 0; n < atoms; n++) {
    const long start = first[n], stop = first[n + 1];
    real table[CHUNK * COUPLINGS], *o = out + n * ROWS * channels;
    const real *xs[CHUNK], *rs[CHUNK];
    if (start == stop) memset(o, 0, ROWS * channels * sizeof(real));
    for (long begin = start; begin < stop; begin += CHUNK) {
      const long size = stop - begin < CHUNK ? stop - begin : CHUNK;
      for (long k = 0; k < size; k++) {
        const long p = pair[begin + k];
        couple(y + p * HARMONICS, forth[p] != begin + k, table + k * COUPLINGS);
        xs[k] = x + sender[begin + k] * INPUTS * channels;
        rs[k] = r + p * PATHS * channels;
      }
      for (long c = 0; c < channels; c += LANES) {
//@ forward
      }
    }
  }
}
#endif

#ifdef PASS_double_receiver
void double_receiver(long threads, long atoms, long channels, const long *first,
                     const long *sender, const long *pair, const long *forth, const real *x,
                     const real *y, const real *r, const real *vx, const real *vy,
                     const real *vr, real *out) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
  for (long n = 0; n < atoms; n++) {
    const long start = first[n], stop = first[n + 1];
    real table[CHUNK * COUPLINGS], tangent[CHUNK * COUPLINGS], *o = out + n * ROWS * channels;
    const real *xs[CHUNK], *rs[CHUNK], *vxs[CHUNK], *vrs[CHUNK];
    if (start == stop) memset(o, 0, ROWS * channels * sizeof(real));
    for (long begin = start; begin < stop; begin += CHUNK) {
      const long size = stop - begin < CHUNK ? stop - begin : CHUNK;
      for (long k = 0; k < size; k++) {
        const long p = pair[begin + k];
        const int side = forth[p] != begin + k;
        const long source = sender[begin + k] * INPUTS * channels;
        const long weight = p * PATHS * channels;
        couple(y + p * HARMONICS, side, table + k * COUPLINGS);
        couple(vy + p * HARMONICS, side, tangent + k * COUPLINGS);
        xs[k] = x + source;
        vxs[k] = vx + source;
        rs[k] = r + weight;
        vrs[k] = vr + weight;
      }
      for (long c = 0; c < channels; c += LANES) {
//@ double_receiver
      }
    }
  }
}
#endif

/* Every thread adds into its own gx: the first into the result, the others into `spare`. */
static inline void add_spare(long threads, long size, real *gx, const real *spare) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long i = 0; i < size; i++)
    for (long thread = 1; thread < threads; thread++) gx[i] += spare[(thread - 1) * size + i];
}

#ifdef PASS_backward
void backward(long threads, long atoms, long pairs, long channels, const long *receiver,
              const long *sender, const long *pair_edges, const real *x, const real *y,
              const real *r, const real *g_all, real *gx_all, real *spare, real *gy, real *gr) {
  const int want_x = gx_all != 0, want_y = gy != 0, want_r = gr != 0;
  const long size = atoms * INPUTS * channels;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long thread = 0; thread < threads; thread++) {
    real *gx_own = thread ? spare + (thread - 1) * size : gx_all;
    if (want_x) memset(gx_own, 0, size * sizeof(real));
    for (long p = pairs * thread / threads; p < pairs * (thread + 1) / threads; p++) {
      real table[2][COUPLINGS];
      vec sums[2][HARMONICS];
      const real *x_of[2], *g_of[2], *r_of = r + p * PATHS * channels;
      real *gx_of[2], *gr_of = gr + p * PATHS * channels;
      for (int side = 0; side < 2; side++) {
        const long e = pair_edges[side * pairs + p];
        couple(y + p * HARMONICS, side, table[side]);
        x_of[side] = x + sender[e] * INPUTS * channels;
        g_of[side] = g_all + receiver[e] * ROWS * channels;
        gx_of[side] = gx_own + sender[e] * INPUTS * channels;
      }
      if (want_y) memset(sums, 0, sizeof sums);
      for (long c = 0; c < channels; c += LANES) {
//@ backward
      }
      if (want_y)
        for (int i = 0; i < HARMONICS; i++)
          gy[p * HARMONICS + i] = total(sums[0][i] + SIGN[1][i] * sums[1][i]);
    }
  }
  if (want_x && threads > 1) add_spare(threads, size, gx_all, spare);
}
#endif

#ifdef PASS_double_pairs
void double_pairs(long threads, long atoms, long pairs, long channels, const long *receiver,
                  const long *sender, const long *pair_edges, const real *x, const real *y,
                  const real *r, const real *g_all, const real *vx, const real *vy,
                  const real *vr, real *gx_all, real *spare, real *gy, real *gr) {
  const int want_x = gx_all != 0, want_y = gy != 0, want_r = gr != 0;
  const long size = atoms * INPUTS * channels;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long thread = 0; thread < threads; thread++) {
    real *gx_own = thread ? spare + (thread - 1) * size : gx_all;
    if (want_x) memset(gx_own, 0, size * sizeof(real));
    for (long p = pairs * thread / threads; p < pairs * (thread + 1) / threads; p++) {
      real table[2][COUPLINGS], tangent[2][COUPLINGS];
      vec sums[2][HARMONICS];
      const real *x_of[2], *vx_of[2], *g_of[2];
      const real *r_of = r + p * PATHS * channels, *vr_of = vr + p * PATHS * channels;
      real *gx_of[2], *gr_of = gr + p * PATHS * channels;
      for (int side = 0; side < 2; side++) {
        const long e = pair_edges[side * pairs + p];
        couple(y + p * HARMONICS, side, table[side]);
        couple(vy + p * HARMONICS, side, tangent[side]);
        x_of[side] = x + sender[e] * INPUTS * channels;
        vx_of[side] = vx + sender[e] * INPUTS * channels;
        g_of[side] = g_all + receiver[e] * ROWS * channels;
        gx_of[side] = gx_own + sender[e] * INPUTS * channels;
      }
      if (want_y) memset(sums, 0, sizeof sums);
      for (long c = 0; c < channels; c += LANES) {
//@ double_pairs
      }
      if (want_y)
        for (int i = 0; i < HARMONICS; i++)
          gy[p * HARMONICS + i] = total(sums[0][i] + SIGN[1][i] * sums[1][i]);
    }
  }
  if (want_x && threads > 1) add_spare(threads, size, gx_all, spare);
}
#endif
