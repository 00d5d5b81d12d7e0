/* Squared lengths |(x - c) A|^2 of many vectors x of several kinds, in double precision. REAL is the
   type of x; LANES is set when compiling.

   A is lower triangular, which any matrix can be made without changing lengths. Its columns are
   stored in panels of PANEL vectors: panel p begins with row p * PANEL * LANES, as what is above is
   zero, and rows follow each other. Both sizes are padded with zeros to whole panels. */

#include <math.h>

typedef REAL real;
typedef double vec __attribute__((vector_size(LANES * sizeof(double))));
typedef double loose
    __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));
#define AT(pointer) (*(loose *)(pointer))
#define UNROLL _Pragma("GCC unroll 8")
#define PANEL 3
#define ROWS (LANES >= 8 ? 8 : 4) /* sums of ROWS * PANEL vectors stay in registers */

/* Of `rows` vectors, number k of vector r at x[k * ROWS + r]. */
__attribute__((always_inline)) static inline void
squares(int rows, long size, const double *x, const double *panels, double *out) {
  vec square[ROWS];
  UNROLL for (int r = 0; r < rows; r++) square[r] = (vec){0};
  for (long first = 0; first < size; first += PANEL * LANES) {
    vec sum[ROWS][PANEL];
    UNROLL for (int r = 0; r < rows; r++)
      UNROLL for (int v = 0; v < PANEL; v++) sum[r][v] = (vec){0};
    for (long k = first; k < size; k++, panels += PANEL * LANES)
      UNROLL for (int v = 0; v < PANEL; v++) {
        const vec column = AT(panels + v * LANES);
        UNROLL for (int r = 0; r < rows; r++) sum[r][v] += x[k * ROWS + r] * column;
      }
    UNROLL for (int r = 0; r < rows; r++)
      UNROLL for (int v = 0; v < PANEL; v++) square[r] += sum[r][v] * sum[r][v];
  }
  UNROLL for (int r = 0; r < rows; r++) {
    out[r] = 0;
    for (int i = 0; i < LANES; i++) out[r] += square[r][i];
  }
}

/* Number i of vectors that are double where `wide`, else REAL. */
__attribute__((always_inline)) static inline double at(int wide, const void *x, long i) {
  return wide ? ((const double *)x)[i] : ((const real *)x)[i];
}

/* Vectors of `width` numbers, padded to `size`, which fits the stack. Those of kind s are
   first[s] to first[s + 1] and have a centre and a matrix of their own; centres may be absent. */
__attribute__((always_inline)) static inline void
of_kinds(int wide, long kinds, const long *first, long width, long size, const void *x,
         const double *centres, const double *panels, double *out) {
  double held[size * ROWS];
  for (long k = width * ROWS; k < size * ROWS; k++) held[k] = 0;
  const long whole = (size + PANEL * LANES) * size / 2; /* numbers of a matrix */
  for (long s = 0; s < kinds; s++, panels += whole, centres += centres ? width : 0)
    for (long begin = first[s]; begin < first[s + 1]; begin += ROWS) {
      const long rows = first[s + 1] - begin < ROWS ? first[s + 1] - begin : ROWS;
      for (int r = 0; r < ROWS; r++) {
        const long from = (begin + (r < rows ? r : 0)) * width;
        for (long k = 0; k < width; k++)
          held[k * ROWS + r] = at(wide, x, from + k) - (centres ? centres[k] : 0.0);
      }
      double found[ROWS];
      if (rows == 1) squares(1, size, held, panels, found);
      else if (rows <= ROWS / 2) squares(ROWS / 2, size, held, panels, found);
      else squares(ROWS, size, held, panels, found);
      for (long r = 0; r < rows; r++) out[begin + r] = found[r];
    }
}

void lengths(long kinds, const long *first, long width, long size, const real *x,
             const double *centres, const double *panels, double *out) {
  of_kinds(0, kinds, first, width, size, x, centres, panels, out);
}

/* (m / (1 + slope m))^power, of bayrace.posterior.growth.Law. */
static inline double levelled(double m, double power, double slope) {
  return pow(m / (1 + slope * m), power);
}

/* What bayrace.posterior.growth says of atoms with the features x, m being their length by centres
   and panels, of which `excess` and `grown` are powers, levelled off. `rigid`, the panels of one
   matrix, gives lengths r of atoms and of sums over structures: atomic = r excess, energy =
   r mean(excess). Without it there are neither; without scales, one of every kind, there is no
   covariance, (3, 3) of every atom. `sums` are zeros (structures, width). */
void grow(long kinds, const long *first, long width, const real *x, long size,
          const double *centres, const double *panels, long rigid_size, const double *rigid,
          long structures, const long *owner, const double *scale, double power, double slope,
          double energy_power, double energy_slope, double *sums, double *energy, double *atomic,
          double *grown, double *covariance) {
  const long all[] = {0, first[kinds]}, every[] = {0, structures};
  of_kinds(0, kinds, first, width, size, x, centres, panels, grown);
  if (rigid) {
    double excess[structures], atoms[structures];
    for (long s = 0; s < structures; s++) excess[s] = atoms[s] = 0;
    of_kinds(0, 1, all, width, rigid_size, x, 0, rigid, atomic);
    for (long n = 0; n < all[1]; n++) {
      const double own = levelled(grown[n], energy_power, energy_slope);
      atomic[n] *= own;
      excess[owner[n]] += own;
      atoms[owner[n]] += 1;
      for (long k = 0; k < width; k++) sums[owner[n] * width + k] += x[n * width + k];
    }
    of_kinds(1, 1, every, width, rigid_size, sums, 0, rigid, energy);
    for (long s = 0; s < structures; s++) energy[s] *= excess[s] / atoms[s];
  }
  for (long s = 0; s < kinds; s++)
    for (long n = first[s]; n < first[s + 1]; n++) {
      grown[n] = levelled(grown[n], power, slope);
      for (int k = 0; covariance && k < 9; k++)
        covariance[9 * n + k] = k % 4 ? 0 : scale[s] * grown[n];
    }
}
