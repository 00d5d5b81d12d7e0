/* Pairs of atoms: distances as radial functions read them, spherical harmonics of the directions,
   and the repulsion of atoms that are too close; with their derivatives.

   r = x[sender] - x[receiver] + shift cell, along the first edge of a pair. Below `start` of two
   elements distances saturate and ZBL is added: bayrace.models.race.short_range has the formulas.
   own[1] is the highest degree, own[2] the number of elements, own[3] whether `close` is given:
   (6, kinds, kinds) start, charges, 1 / a, value, slope and curvature of ZBL there. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef REAL real;
#define STEP(name) void name(const long *run, const long *own, void *const *arrays)
#define SOFT ((real)0.15) /* Å, as in short_range.py */

enum { THREADS, ATOMS, PAIRS, EDGES, STRUCTURES };

//@ threads

static const double SCREENING[4][2] = {
    {0.18175, 3.19980}, {0.50986, 0.94229}, {0.28022, 0.40290}, {0.02817, 0.20162}};

typedef struct {
  const real *positions, *cell, *shifts, *close;
  const long *edges, *pair_edges, *owner, *species;
} graph;

typedef struct {
  long receiver, sender;
  real r[3], unit[3], length;
  real read, slope;            /* distance as radial functions read it, and its derivative */
  real energy, energy_slope;   /* of the repulsion */
} pair_of_atoms;

static graph read_graph(void *const *arrays) {
  return (graph){arrays[0], arrays[1], arrays[2], arrays[7],
                 arrays[3], arrays[4], arrays[5], arrays[6]};
}

static void repel(const graph *a, long kinds, pair_of_atoms *p) {
  p->read = p->length;
  p->slope = 1;
  p->energy = p->energy_slope = 0;
  if (!a->close) return;
  const long place = a->species[p->receiver] % kinds * kinds + a->species[p->sender] % kinds;
  const long table = kinds * kinds;
  const real *own = a->close + place;
  const real depth = own[0] - p->length;
  if (!(depth > 0)) return;
  const double d = p->length, t = depth / SOFT, cube = 1 + t * t * t, root = 1 / cbrt(cube);
  p->read = (real)(d + depth - SOFT * t * root);
  p->slope = (real)(root / cube); /* d/dt of t (1 + t^3)^(-1/3), times dt/dd of -1 / SOFT */
  const double charges = own[table], per_length = own[2 * table];
  const double value = own[3 * table], first = own[4 * table], second = own[5 * table];
  double screening = 0, steep = 0;
  for (int k = 0; k < 4; k++) {
    const double rate = SCREENING[k][1] * per_length, term = SCREENING[k][0] * exp(-rate * d);
    screening += term;
    steep += rate * term;
  }
  p->energy = (real)(charges / d * screening - (value - first * depth + 0.5 * second * depth * depth));
  p->energy_slope =
      (real)(-charges / d * (screening / d + steep) - (first - second * depth));
}

static pair_of_atoms find(const graph *a, long edges, long kinds, long index) {
  pair_of_atoms p;
  const long edge = a->pair_edges[index];
  p.receiver = a->edges[edge];
  p.sender = a->edges[edges + edge];
  const real *cell = a->cell + 9 * a->owner[p.receiver], *shift = a->shifts + 3 * edge;
  real square = 0;
  for (int i = 0; i < 3; i++) {
    p.r[i] = a->positions[3 * p.sender + i] - a->positions[3 * p.receiver + i] +
             (shift[0] * cell[i] + shift[1] * cell[3 + i] + shift[2] * cell[6 + i]);
    square += p.r[i] * p.r[i];
  }
  p.length = (real)sqrt((double)square);
  for (int i = 0; i < 3; i++) p.unit[i] = p.r[i] / p.length;
  repel(a, kinds, &p);
  return p;
}

#define R(number) ((real)(number))
#define R3 R(1.7320508075688772)
#define R5 R(2.23606797749979)
#define R7 R(2.6457513110645907)
#define R15 R(3.872983346207417)
#define R42 R(6.48074069840786)
#define R70 R(8.366600265340756)
#define R105 R(10.246950765959598)

/* As bayrace.nn.harmonics: the polar axis is y. */
static inline void harmonics(long degree, const real *u, real *out) {
  const real x = u[0], y = u[1], z = u[2];
  out[0] = 1;
  if (degree < 1) return;
  out[1] = R3 * x, out[2] = R3 * y, out[3] = R3 * z;
  if (degree < 2) return;
  const real xz = x * z, zz_xx = z * z - x * x, yy = y * y;
  out[4] = R15 * xz, out[5] = R15 * x * y, out[6] = R5 / 2 * (3 * yy - 1);
  out[7] = R15 * y * z, out[8] = R15 / 2 * zz_xx;
  if (degree < 3) return;
  out[9] = R70 / 4 * x * (3 * z * z - x * x), out[10] = R105 * xz * y;
  out[11] = R42 / 4 * x * (5 * yy - 1), out[12] = R7 / 2 * y * (5 * yy - 3);
  out[13] = R42 / 4 * z * (5 * yy - 1), out[14] = R105 / 2 * y * zz_xx;
  out[15] = R70 / 4 * z * (z * z - 3 * x * x);
}

/* Derivatives of the polynomials above by x, y and z. */
static inline void slopes(long degree, const real *u, real out[16][3]) {
  const real x = u[0], y = u[1], z = u[2];
  memset(out, 0, 16 * 3 * sizeof(real));
  if (degree < 1) return;
  out[1][0] = out[2][1] = out[3][2] = R3;
  if (degree < 2) return;
  out[4][0] = R15 * z, out[4][2] = R15 * x;
  out[5][0] = R15 * y, out[5][1] = R15 * x;
  out[6][1] = 3 * R5 * y;
  out[7][1] = R15 * z, out[7][2] = R15 * y;
  out[8][0] = -R15 * x, out[8][2] = R15 * z;
  if (degree < 3) return;
  out[9][0] = R70 / 4 * 3 * (z * z - x * x), out[9][2] = R70 / 4 * 6 * x * z;
  out[10][0] = R105 * y * z, out[10][1] = R105 * x * z, out[10][2] = R105 * x * y;
  out[11][0] = R42 / 4 * (5 * y * y - 1), out[11][1] = R42 / 4 * 10 * x * y;
  out[12][1] = R7 / 2 * (15 * y * y - 3);
  out[13][1] = R42 / 4 * 10 * y * z, out[13][2] = R42 / 4 * (5 * y * y - 1);
  out[14][0] = -R105 * x * y, out[14][1] = R105 / 2 * (z * z - x * x), out[14][2] = R105 * y * z;
  out[15][0] = -R70 / 4 * 6 * x * z, out[15][2] = R70 / 4 * 3 * (z * z - x * x);
}

/* arrays: the graph (8), then distances (pairs), harmonics (pairs, H), repulsion (atoms). */
STEP(geometry) {
  const graph a = read_graph(arrays);
  const long degree = own[1], count = (degree + 1) * (degree + 1);
  real *distance = arrays[8], *all = arrays[9], *energy = arrays[10];
  const long threads = threads_for(run, run[PAIRS] / 16), atoms = run[ATOMS];
  real *spare = spare_sums(threads, atoms);
  memset(energy, 0, atoms * sizeof(real));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long thread = 0; thread < threads; thread++) {
    real *sums = part(thread, atoms, energy, spare);
    const long end = run[PAIRS] * (thread + 1) / threads;
    for (long i = run[PAIRS] * thread / threads; i < end; i++) {
      const pair_of_atoms p = find(&a, run[EDGES], own[2], i);
      distance[i] = p.read;
      harmonics(degree, p.unit, all + i * count);
      sums[p.receiver] += p.energy / 2;
      sums[p.sender] += p.energy / 2;
    }
  }
  merge(threads, atoms, energy, spare);
}

/* arrays: the graph (8), gradients of distances and harmonics, then those of positions (atoms, 3)
   and of a strain (structures, 3, 3), in which positions and cells take part. */
STEP(geometry_back) {
  const graph a = read_graph(arrays);
  const long degree = own[1], count = (degree + 1) * (degree + 1);
  const real *by_distance = arrays[8], *by_harmonics = arrays[9];
  real *all_forces = arrays[10], *all_virial = arrays[11];
  const long atoms = 3 * run[ATOMS], strains = 9 * run[STRUCTURES];
  const long threads = threads_for(run, run[PAIRS] / 16);
  real *spare = spare_sums(threads, atoms), *spare_virial = spare_sums(threads, strains);
  memset(all_forces, 0, atoms * sizeof(real));
  memset(all_virial, 0, strains * sizeof(real));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (long thread = 0; thread < threads; thread++) {
    real *forces = part(thread, atoms, all_forces, spare);
    real *virial = part(thread, strains, all_virial, spare_virial);
    const long end = run[PAIRS] * (thread + 1) / threads;
    for (long i = run[PAIRS] * thread / threads; i < end; i++) {
      const pair_of_atoms p = find(&a, run[EDGES], own[2], i);
      real table[16][3], turn[3] = {0}, along = 0, g[3];
      slopes(degree, p.unit, table);
      for (long k = 1; k < count; k++)
        for (int j = 0; j < 3; j++) turn[j] += by_harmonics[i * count + k] * table[k][j];
      for (int j = 0; j < 3; j++) along += turn[j] * p.unit[j];
      const real radial = by_distance[i] * p.slope + p.energy_slope;
      real *own_virial = virial + 9 * a.owner[p.receiver];
      for (int j = 0; j < 3; j++)
        g[j] = radial * p.unit[j] + (turn[j] - along * p.unit[j]) / p.length;
      for (int j = 0; j < 3; j++) {
        forces[3 * p.sender + j] += g[j];
        forces[3 * p.receiver + j] -= g[j];
        for (int k = 0; k < 3; k++) own_virial[3 * j + k] += (p.r[j] * g[k] + p.r[k] * g[j]) / 2;
      }
    }
  }
  merge(threads, atoms, all_forces, spare);
  merge(threads, strains, all_virial, spare_virial);
}

/* How distances and harmonics change when atoms move by v (atoms, 3) and the strain by w
   (structures, 3, 3), either null for zero.
   arrays: the graph (8), v, w, then the changes of distances and harmonics. */
STEP(geometry_tangent) {
  const graph a = read_graph(arrays);
  const long degree = own[1], count = (degree + 1) * (degree + 1);
  const real *v = arrays[8], *w = arrays[9];
  real *by_distance = arrays[10], *by_harmonics = arrays[11];
#pragma omp parallel for num_threads(threads_for(run, run[PAIRS] / 16)) schedule(static)
  for (long i = 0; i < run[PAIRS]; i++) {
    const pair_of_atoms p = find(&a, run[EDGES], own[2], i);
    real table[16][3], move[3] = {0}, along = 0;
    slopes(degree, p.unit, table);
    if (v)
      for (int j = 0; j < 3; j++) move[j] += v[3 * p.sender + j] - v[3 * p.receiver + j];
    if (w) {
      const real *strain = w + 9 * a.owner[p.receiver];
      for (int j = 0; j < 3; j++)
        for (int k = 0; k < 3; k++)
          move[j] += p.r[k] * (strain[3 * k + j] + strain[3 * j + k]) / 2;
    }
    for (int j = 0; j < 3; j++) along += move[j] * p.unit[j];
    by_distance[i] = along * p.slope;
    for (int j = 0; j < 3; j++) move[j] = (move[j] - along * p.unit[j]) / p.length;
    by_harmonics[i * count] = 0;
    for (long k = 1; k < count; k++)
      by_harmonics[i * count + k] =
          table[k][0] * move[0] + table[k][1] * move[1] + table[k][2] * move[2];
  }
}
