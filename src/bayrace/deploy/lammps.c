/* One call before a prediction and one after it, with what LAMMPS keeps of its atoms. */

#include <math.h>
#include <string.h>

/* LAMMPS' library. */
typedef struct {
  void *lammps;
  const char *fix;
  void *(*extract)(void *, const char *);
  void (*set_energy)(void *, const char *, double);
  void (*set_energies)(void *, const char *, double *);
  void (*set_virial)(void *, const char *, double *);
  void (*set_vector)(void *, const char *, int, double);
  int (*has_error)(void *);
} library;

#define PARTS 9 /* six of the box, then tags, images and types of atoms */

/* What few steps change. */
typedef struct {
  long atoms;
  double volume; /* 0 unless periodic in all directions */
  const void *box[6];
  long bytes[PARTS];
  const char *then;      /* all parts, one after another, as they were */
  const long *order;     /* places in LAMMPS in the order of the tags */
  const double *offsets; /* (atoms, 3) in LAMMPS' order, that unwrap its positions */
} layout;

/* What a run does not change: units, the stop rule, and how its numbers are found. */
typedef struct {
  double unit, error, negligible, probability, gap, resolution;
  long worst_alone, sets, steps;
  const double *most;
  const long *size;
  const double *const *squares, *const *weights;
  const double *table; /* of gaps, (rows, steps); NULL where distances are not watched */
  double (*assess)(long, const double *, double, double, long, const double *, const long *,
                   const double *const *, const double *const *, double *); /* gaussian.c */
  long (*widest)(long, const unsigned char *, const double *, const long *, const double *, long,
                 double, double *); /* pairs.c */
} settings;

/* Positions in the order of the tags; 0 if something of the layout has changed. */
int gather(const library *l, const layout *k, double *const *x, double *out) {
  static const char *const names[] = {"id", "image", "type"};
  const char *then = k->then;
  for (int part = 0; part < PARTS; then += k->bytes[part++]) {
    const void *now = part < 6 ? k->box[part] : l->extract(l->lammps, names[part - 6]);
    if (k->bytes[part] && (!now || memcmp(now, then, k->bytes[part]))) return 0;
  }
  for (long i = 0; i < k->atoms; i++) {
    const long place = 3 * k->order[i];
    for (int a = 0; a < 3; a++) out[3 * i + a] = x[0][place + a] + k->offsets[place + a];
  }
  return 1;
}

/* σ of atoms as their properties, and the vector of the fix: P, largest σ of a component, σ of the
   energy, gap, whether the rule is broken, which is returned; -1 if there is no such property.
   Variances as in `finish`. */
static int tell(const library *l, const layout *k, const settings *s, double energy_variance,
                const double *noise, const double *ignorance, const double *atomic, long pairs,
                const unsigned char *close, const double *square, const long *row, double *room) {
  static const char *const names[] = {"d_sigma_energy", "d_sigma_force", "d_sigma_worst"};
  const long n = k->atoms;
  double *total = room, *out = room + 9 * n, found[2] = {0, 0}, largest = 0, risk;
  const double *components = out + 3 * n, *values[] = {NULL, out + 6 * n, out + 7 * n};
  for (long i = 0; i < 9 * n; i++) total[i] = noise[i] + ignorance[i];
  risk = s->assess(n, total, s->error, s->negligible, s->sets, s->most, s->size, s->squares,
                   s->weights, out);
  if (s->worst_alone) {
    risk = 0;
    for (long i = 0; i < n; i++) risk = fmax(risk, out[8 * n + i]);
  }
  for (long i = 0; i < 3 * n; i++) largest = fmax(largest, components[i]);
  if (s->table) s->widest(pairs, close, square, row, s->table, s->steps, s->resolution, found);
  const int broken = risk > s->probability || (s->table && found[0] > s->gap);
  for (int p = 0; p < 3; p++) {
    double *to = l->extract(l->lammps, names[p]);
    if (!to && n) return -1;
    for (long i = 0; i < n; i++)
      to[k->order[i]] = s->unit * (p ? values[p][i] : atomic ? sqrt(atomic[i]) : 0);
  }
  const double vector[] = {risk, largest * s->unit, sqrt(energy_variance) * s->unit, found[0],
                           broken};
  for (int i = 0; i < 5; i++) l->set_vector(l->lammps, l->fix, i + 1, vector[i]);
  return broken;
}

/* Energies, forces and virial of a prediction in the order of the tags, and σ where `noise` is not
   NULL: (atoms, 3, 3) covariances of noise and ignorance, variances of the energy and, if known, of
   the energies of atoms. `stress` (6,) may be NULL: xx, yy, zz, yz, xz, xy. `room` has 18 numbers
   an atom. Returns -1 if LAMMPS has refused something, else whether the rule is broken. */
int finish(const library *l, const layout *k, const settings *s, double *const *f, double *room,
           const double *energy, const double *energies, const double *forces,
           const double *stress, const double *energy_noise, const double *energy_ignorance,
           const double *noise, const double *ignorance, const double *atomic, long pairs,
           const unsigned char *close, const double *square, const long *row) {
  static const int voigt[] = {0, 1, 2, 5, 4, 3}; /* of LAMMPS' xx, yy, zz, xy, xz, yz */
  double virial[6] = {0};
  int broken = 0;
  for (int i = 0; stress && k->volume > 0 && i < 6; i++)
    virial[i] = -k->volume * stress[voigt[i]] * s->unit;
  for (long i = 0; i < k->atoms; i++) {
    const long place = k->order[i];
    room[place] = energies[i] * s->unit;
    for (int a = 0; a < 3; a++) f[0][3 * place + a] = forces[3 * i + a] * s->unit;
  }
  l->set_energy(l->lammps, l->fix, energy[0] * s->unit);
  l->set_energies(l->lammps, l->fix, room); /* which copies them */
  l->set_virial(l->lammps, l->fix, virial);
  if (noise)
    broken = tell(l, k, s, energy_noise[0] + energy_ignorance[0], noise, ignorance, atomic, pairs,
                  close, square, row, room);
  return l->has_error(l->lammps) ? -1 : broken;
}
