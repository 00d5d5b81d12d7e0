/* Messages with the radial splines inside; messages.py fills in the lines marked with @.
   Each pass is compiled on its own, because compilers take time for long functions.

   x (atoms, INPUTS, CHANNELS), y (pairs, HARMONICS), d (pairs), table (intervals + 3, WIDTH);
   g and out (atoms, ROWS, CHANNELS); edges of receiver n are first[n] .. first[n + 1]. R, the radial
   weights of a pair, is read from the table where it is needed and never stored. Otherwise as in
   convolution.c. own: adds, intervals, 1 / spacing. */

#include <stdlib.h>
#include <string.h>

//@ vectors
#define STEP(name) void name(const long *run, const long *own, void *const *arrays)
#define WIDTH (PATHS * CHANNELS)
#define channels CHANNELS

enum { THREADS, ATOMS, PAIRS, EDGES, STRUCTURES };

static const int ODD[PATHS] = {
//@ odd
};

typedef real several __attribute__((vector_size(CHUNK * sizeof(real)))); /* of as many pairs */
#define ALIGNED __attribute__((aligned(CHUNK * sizeof(real))))

/* Couplings of up to CHUNK pairs from their harmonics: of pair k at t[i * CHUNK + k]. */
static inline void couple(const real *harmonics, const long *pairs, long size, real *couplings) {
  real gathered[HARMONICS * CHUNK] ALIGNED;
  memset(gathered, 0, sizeof gathered);
  for (long k = 0; k < size; k++)
    for (int i = 0; i < HARMONICS; i++)
      gathered[i * CHUNK + k] = harmonics[pairs[k] * HARMONICS + i];
  const several *y = (const several *)gathered;
  several *t = (several *)couplings;
//@ couple
}

/* Four weights of a cubic spline, their derivatives, and the first row they belong to. */
static inline long weigh(real d, const long *own, real *w, real *slope) {
  double inverse;
  memcpy(&inverse, own + 2, sizeof inverse);
  const real u = d * (real)inverse;
  if (!(u >= 0 && u < own[1])) { /* also not a number */
    for (int k = 0; k < 4; k++) w[k] = slope[k] = 0;
    return 0;
  }
  const long i = (long)u;
  const real t = u - (real)i, s = 1 - t, scale = (real)inverse;
  w[0] = s * s * s / 6;
  w[1] = (t * t * (3 * t - 6) + 4) / 6;
  w[2] = (s * s * (3 * s - 6) + 4) / 6;
  w[3] = t * t * t / 6;
  slope[0] = -s * s / 2 * scale;
  slope[1] = t * (3 * t - 4) / 2 * scale;
  slope[2] = -s * (3 * s - 4) / 2 * scale;
  slope[3] = t * t / 2 * scale;
  return i;
}

/* The radial weights of a pair, those of odd paths times `flip`. */
static inline void blend(const real *row, const real *w, real flip, real *out) {
  const real flipped[4] = {flip * w[0], flip * w[1], flip * w[2], flip * w[3]};
  for (long path = 0; path < PATHS; path++) {
    const real *v = ODD[path] ? flipped : w;
    for (long i = path * channels; i < (path + 1) * channels; i += LANES)
      AT(out + i) = v[0] * AT(row + i) + v[1] * AT(row + WIDTH + i) +
                    v[2] * AT(row + 2 * WIDTH + i) + v[3] * AT(row + 3 * WIDTH + i);
  }
}

//@ lanes

static inline void put(real *target, vec value, int add) {
  if (add) value += AT(target);
  AT(target) = value;
}

//@ threads

static inline long chunk(long begin, long end) { return end - begin < CHUNK ? end - begin : CHUNK; }

typedef struct {
  long of[CHUNK];
} numbers;

static inline numbers numbered(long first) {
  numbers found;
  for (int k = 0; k < CHUNK; k++) found.of[k] = first + k;
  return found;
}

#ifdef PASS_send
/* arrays: first, sender, pair, forth, x, d, y, table; out. */
STEP(send) {
  const long *first = arrays[0], *sender = arrays[1], *pair = arrays[2], *forth = arrays[3];
  const real *x = arrays[4], *d = arrays[5], *y = arrays[6], *splines = arrays[7];
#pragma omp parallel for num_threads(threads_for(run, run[PAIRS])) schedule(dynamic, 4)
  for (long n = 0; n < run[ATOMS]; n++) {
    const long start = first[n], stop = first[n + 1];
    real table[CHUNK * COUPLINGS] ALIGNED, radial[CHUNK * WIDTH], w[4], slope[4];
    real *o = (real *)arrays[8] + n * ROWS * channels;
    const real *xs[CHUNK], *rs[CHUNK];
    if (start == stop) memset(o, 0, ROWS * channels * sizeof(real));
    for (long begin = start; begin < stop; begin += CHUNK) {
      const long size = chunk(begin, stop);
      couple(y, pair + begin, size, table);
      for (long k = 0; k < size; k++) {
        const long p = pair[begin + k], row = weigh(d[p], own, w, slope);
        blend(splines + row * WIDTH, w, forth[p] == begin + k ? 1 : -1, radial + k * WIDTH);
        xs[k] = x + sender[begin + k] * INPUTS * channels;
        rs[k] = radial + k * WIDTH;
      }
      for (long c = 0; c < channels; c += LANES) {
//@ forward
      }
    }
  }
}
#endif

#ifdef PASS_send_tangent
/* How `out` changes with x by vx, d by vd and y by vy.
   arrays: first, sender, pair, forth, x, d, y, table, vx, vd, vy; change of out. */
STEP(send_tangent) {
  const long *first = arrays[0], *sender = arrays[1], *pair = arrays[2], *forth = arrays[3];
  const real *x = arrays[4], *d = arrays[5], *y = arrays[6], *splines = arrays[7];
  const real *vx = arrays[8], *vd = arrays[9], *vy = arrays[10];
#pragma omp parallel for num_threads(threads_for(run, run[PAIRS])) schedule(dynamic, 4)
  for (long n = 0; n < run[ATOMS]; n++) {
    const long start = first[n], stop = first[n + 1];
    real table[CHUNK * COUPLINGS] ALIGNED, tangent[CHUNK * COUPLINGS] ALIGNED, w[4], slope[4];
    real radial[CHUNK * WIDTH], moving[CHUNK * WIDTH];
    real *o = (real *)arrays[11] + n * ROWS * channels;
    const real *xs[CHUNK], *rs[CHUNK], *vxs[CHUNK], *vrs[CHUNK];
    if (start == stop) memset(o, 0, ROWS * channels * sizeof(real));
    for (long begin = start; begin < stop; begin += CHUNK) {
      const long size = chunk(begin, stop);
      couple(y, pair + begin, size, table);
      couple(vy, pair + begin, size, tangent);
      for (long k = 0; k < size; k++) {
        const long p = pair[begin + k], source = sender[begin + k] * INPUTS * channels;
        const real flip = forth[p] == begin + k ? 1 : -1;
        const long row = weigh(d[p], own, w, slope);
        for (int j = 0; j < 4; j++) slope[j] *= vd[p];
        blend(splines + row * WIDTH, w, flip, radial + k * WIDTH);
        blend(splines + row * WIDTH, slope, flip, moving + k * WIDTH);
        xs[k] = x + source;
        vxs[k] = vx + source;
        rs[k] = radial + k * WIDTH;
        vrs[k] = moving + k * WIDTH;
      }
      for (long c = 0; c < channels; c += LANES) {
//@ tangent
      }
    }
  }
}
#endif

#ifdef PASS_send_back
/* Gradients by positions: of x (null where it does not depend on them), d and y.
   arrays: receiver, sender, pair_edges, g, x, d, y, table; gx, gd, gy. */
STEP(send_back) {
  const long *receiver = arrays[0], *sender = arrays[1], *pair_edges = arrays[2];
  const real *g_all = arrays[3], *x = arrays[4], *d = arrays[5], *y = arrays[6];
  const real *splines = arrays[7];
  real *gx_all = arrays[8], *gd = arrays[9], *gy = arrays[10];
  const long pairs = run[PAIRS], size = run[ATOMS] * INPUTS * channels;
  const long threads = threads_for(run, run[PAIRS]);
  const int want_x = gx_all != 0;
  real *spare = want_x ? spare_sums(threads, size) : 0;
  if (want_x && !(own[0] & 1)) memset(gx_all, 0, size * sizeof(real));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long thread = 0; thread < threads; thread++) {
    const long end = pairs * (thread + 1) / threads;
    real table[CHUNK * COUPLINGS] ALIGNED, *gx_own = part(thread, size, gx_all, spare);
    for (long p = pairs * thread / threads; p < end; p += CHUNK) {
      const long some = chunk(p, end);
      couple(y, numbered(p).of, some, table);
      for (long k = 0; k < some; k++) {
        real w_of[4], slope[4], r_of[WIDTH], gr_of[WIDTH];
        vec z[HARMONICS], along = {0};
        const real *x_of[2], *g_of[2], *t = table + k;
        const real *row = splines + weigh(d[p + k], own, w_of, slope) * WIDTH;
        real *gx_of[2];
        blend(row, w_of, 1, r_of);
        for (int side = 0; side < 2; side++) {
          const long e = pair_edges[side * pairs + p + k];
          x_of[side] = x + sender[e] * INPUTS * channels;
          g_of[side] = g_all + receiver[e] * ROWS * channels;
          gx_of[side] = gx_own + sender[e] * INPUTS * channels;
        }
        memset(z, 0, sizeof z);
        for (long c = 0; c < channels; c += LANES) {
//@ backward
        }
        for (long i = 0; i < WIDTH; i += LANES)
          along += AT(gr_of + i) *
                   (slope[0] * AT(row + i) + slope[1] * AT(row + WIDTH + i) +
                    slope[2] * AT(row + 2 * WIDTH + i) + slope[3] * AT(row + 3 * WIDTH + i));
        gd[p + k] = total(along) + (own[0] & 2 ? gd[p + k] : 0);
        real *into = gy + (p + k) * HARMONICS;
        for (int i = 0; i < HARMONICS; i++) into[i] = total(z[i]) + (own[0] & 4 ? into[i] : 0);
      }
    }
  }
  merge(threads, size, gx_all, spare);
}
#endif

#ifdef PASS_send_reverse
/* Gradients by parameters: of x and the table, given those of `send`, h, and of `send_back`, whose
   argument was g: vx, vd and vy.
   arrays: receiver, sender, pair_edges, h, g, x, d, y, table, vx, vd, vy; gx, gradient of table. */
STEP(send_reverse) {
  const long *receiver = arrays[0], *sender = arrays[1], *pair_edges = arrays[2];
  const real *h_all = arrays[3], *g_all = arrays[4], *x = arrays[5], *d = arrays[6], *y = arrays[7];
  const real *splines = arrays[8], *vx = arrays[9], *vd = arrays[10], *vy = arrays[11];
  real *gx_all = arrays[12], *gt_all = arrays[13];
  const long pairs = run[PAIRS], size = run[ATOMS] * INPUTS * channels, rows = own[1] + 3;
  const long threads = threads_for(run, run[PAIRS]);
  real *spare = spare_sums(threads, size);
  real *spare_table = spare_sums(threads, rows * WIDTH);
  if (!(own[0] & 1)) memset(gx_all, 0, size * sizeof(real));
  const int want_x = 1;
  if (!(own[0] & 2)) memset(gt_all, 0, rows * WIDTH * sizeof(real));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long thread = 0; thread < threads; thread++) {
    real *gx_own = part(thread, size, gx_all, spare);
    real *gt_own = part(thread, rows * WIDTH, gt_all, spare_table);
    real table[CHUNK * COUPLINGS] ALIGNED, tangent[CHUNK * COUPLINGS] ALIGNED;
    const long end = pairs * (thread + 1) / threads;
    for (long p = pairs * thread / threads; p < end; p += CHUNK) {
      const long some = chunk(p, end);
      couple(y, numbered(p).of, some, table);
      couple(vy, numbered(p).of, some, tangent);
      for (long k = 0; k < some; k++) {
        real w_of[4], slope[4], r_of[WIDTH], vr_of[WIDTH], gr_of[WIDTH], gv_of[WIDTH];
        const real *x_of[2], *vx_of[2], *g_of[2], *h_of[2], *t = table + k, *u = tangent + k;
        real *gx_of[2];
        const long row = weigh(d[p + k], own, w_of, slope) * WIDTH;
        for (int j = 0; j < 4; j++) slope[j] *= vd[p + k];
        blend(splines + row, w_of, 1, r_of);
        blend(splines + row, slope, 1, vr_of);
        for (int side = 0; side < 2; side++) {
          const long e = pair_edges[side * pairs + p + k];
          x_of[side] = x + sender[e] * INPUTS * channels;
          vx_of[side] = vx + sender[e] * INPUTS * channels;
          g_of[side] = g_all + receiver[e] * ROWS * channels;
          h_of[side] = h_all + receiver[e] * ROWS * channels;
          gx_of[side] = gx_own + sender[e] * INPUTS * channels;
        }
        for (long c = 0; c < channels; c += LANES) {
//@ reverse
        }
        for (int j = 0; j < 4; j++) {
          real *into = gt_own + row + j * WIDTH;
          for (long i = 0; i < WIDTH; i += LANES)
            AT(into + i) += w_of[j] * AT(gr_of + i) + slope[j] * AT(gv_of + i);
        }
      }
    }
  }
  merge(threads, size, gx_all, spare);
  merge(threads, rows * WIDTH, gt_all, spare_table);
}
#endif
