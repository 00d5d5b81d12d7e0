/* The moments of one weight sample, from the batch's order to that of the files; REAL is the type of
   a network. Arrays that are NULL are not there; results are as bayrace.predict.single has them. */

#include <math.h>

typedef REAL real;

/* What the sample says; `limits` are those of log-variances, of atoms in `head`. */
typedef struct {
  long atoms, structures;
  double low, high, energy_weight, forces_weight; /* λ, which variances are divided by */
} sizes;

static double clamped(double x, double low, double high) {
  return x < low ? low : x > high ? high : x; /* nan stays nan */
}

void moments(const sizes *of, const long *order, const long *species, const long *owner,
             const double *atomic, const double *origin, const real *forces, const real *head,
             const real *noise, const double *ignorance, const double *rigidity, double *energy,
             double *energy_noise, double *energies, double *mean, double *aleatoric,
             double *epistemic, double *rigidities) {
  for (long s = 0; s < of->structures; s++) energy[s] = energy_noise[s] = 0;
  for (long n = 0; n < of->atoms; n++) {
    energy[owner[n]] += atomic[n] + origin[species[n]];
    if (head) energy_noise[owner[n]] += exp(clamped(head[n], of->low, of->high)) / of->energy_weight;
  }
  for (long i = 0; i < of->atoms; i++) {
    const long n = order[i];
    energies[i] = atomic[n] + origin[species[n]];
    if (rigidity) rigidities[i] = rigidity[n];
    for (int a = 0; a < 3; a++) mean[3 * i + a] = forces[3 * n + a];
    for (int k = 0; k < 9; k++) {
      aleatoric[9 * i + k] = noise ? noise[9 * n + k] / of->forces_weight : 0;
      const double own = mean[3 * i + k / 3]; /* a sample agrees with itself; nan stays nan */
      epistemic[9 * i + k] = ignorance ? ignorance[9 * n + k] : own - own;
    }
  }
}
