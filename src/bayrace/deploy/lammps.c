/* One call before a prediction and one after it, with what LAMMPS keeps of its atoms.

   Functions are those of LAMMPS' library; f[0] is where the first of its rows of three begins. */

#include <string.h>

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
  const void *box[6];
  long bytes[PARTS];
  const char *then; /* all parts, one after another, as they were */
  const long *order; /* places in LAMMPS in the order of the tags */
  const double *offsets; /* (atoms, 3) in LAMMPS' order, that unwrap its positions */
} layout;

/* Positions in the order of the tags; 0 if something of the layout has changed. */
int gather(const library *l, const layout *k, double *const *x, double *out) {
  static const char *const names[] = {"id", "image", "type"};
  const char *then = k->then;
  for (int part = 0; part < PARTS; then += k->bytes[part++]) {
    const void *now = part < 6 ? k->box[part] : l->extract(l->lammps, names[part - 6]);
    if (k->bytes[part] && (!now || memcmp(now, then, k->bytes[part]))) return 0;
  }
  for (long i = 0; i < k->atoms; i++)
    for (int a = 0; a < 3; a++) out[3 * i + a] = x[0][3 * k->order[i] + a] + k->offsets[3 * k->order[i] + a];
  return 1;
}

/* Arrays are in the order of the tags and in eV, Å; `virial` may be NULL, and so may `forces` be
   where there are no atoms. `room` (atoms,) is LAMMPS' until it has copied it. Returns whether
   LAMMPS has accepted all. */
int give(const library *l, long atoms, const long *order, double unit, double energy,
         const double *energies, const double *forces, const double *virial, double *room,
         double *const *f) {
  static const int voigt[] = {0, 4, 8, 1, 2, 5};
  double parts[6] = {0};
  for (int k = 0; virial && k < 6; k++) parts[k] = virial[voigt[k]] * unit;
  for (long i = 0; i < atoms; i++) {
    room[order[i]] = energies[i] * unit;
    for (int a = 0; a < 3; a++) f[0][3 * order[i] + a] = forces[3 * i + a] * unit;
  }
  l->set_energy(l->lammps, l->fix, energy * unit);
  l->set_energies(l->lammps, l->fix, room);
  l->set_virial(l->lammps, l->fix, parts);
  return !l->has_error(l->lammps);
}

/* Properties of atoms by their names, and the vector of the fix. */
int tell(const library *l, long atoms, const long *order, double unit, long properties,
         const char *const *names, const double *const *values, long numbers,
         const double *vector) {
  for (long p = 0; p < properties; p++) {
    double *to = l->extract(l->lammps, names[p]);
    if (!to && atoms) return 0;
    for (long i = 0; i < atoms; i++) to[order[i]] = values[p][i] * unit;
  }
  for (long k = 0; k < numbers; k++) l->set_vector(l->lammps, l->fix, (int)k + 1, vector[k]);
  return !l->has_error(l->lammps);
}
