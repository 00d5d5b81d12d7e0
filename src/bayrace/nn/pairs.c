/* Pairs of a neighbour list that are close now, and the graph that they make. */

#include <math.h>

/* Atoms x (n, 3) of structures, those of s being first[s] to first[s + 1], minus whole lattice
   vectors `wrap` and the centre of their structure: at[rank[i]] is the new position of atom i, and
   so is `rounded`. Returns 0 as soon as one of them is farther than √most[s] from `start`. */
static int follow(long structures, const long *first, const double *x, const double *wrap,
                  const double *start, const double *most, const long *rank, double *at,
                  REAL *rounded) {
  for (long s = 0; s < structures; s++) {
    double centre[3] = {0};
    for (long i = first[s]; i < first[s + 1]; i++)
      for (int k = 0; k < 3; k++) centre[k] += x[3 * i + k] - wrap[3 * i + k];
    for (int k = 0; k < 3; k++) centre[k] /= first[s + 1] - first[s];
    for (long i = first[s]; i < first[s + 1]; i++) {
      double square = 0;
      for (int k = 0; k < 3; k++) {
        const double here = x[3 * i + k] - wrap[3 * i + k] - centre[k];
        const double moved = here - start[3 * i + k];
        square += moved * moved;
        at[3 * rank[i] + k] = here;
        rounded[3 * rank[i] + k] = (REAL)here;
      }
      if (!(square <= most[s])) return 0; /* what is no number has gone far */
    }
  }
  return 1;
}

/* Squared distances of pairs, r = x[sender] - x[receiver] + offset, and whether they are below
   `limit`; returns 1 if that is so for other pairs than before, which `close` held. */
static int measure(long pairs, const double *x, const long *receiver, const long *sender,
                   const double *offset, double limit, double *square, unsigned char *close) {
  int changed = 0;
  for (long p = 0; p < pairs; p++) {
    const double *from = x + 3 * receiver[p], *to = x + 3 * sender[p], *o = offset + 3 * p;
    const double a = to[0] - from[0] + o[0], b = to[1] - from[1] + o[1], c = to[2] - from[2] + o[2];
    square[p] = a * a + b * b + c * c;
    const unsigned char now = square[p] < limit;
    changed |= now != close[p];
    close[p] = now;
  }
  return changed;
}

/* What does not change while neighbours are followed; the last three are written. */
typedef struct {
  long structures, pairs;
  double limit;
  const long *first;
  const double *wrap, *start, *most;
  const long *rank, *receiver, *sender;
  const double *offset;
  double *at, *square;
  unsigned char *close;
} known;

/* Both, one after the other: -1 if an atom has gone too far, else what `measure` returns. */
int update(const known *k, const double *x, REAL *rounded) {
  if (!follow(k->structures, k->first, x, k->wrap, k->start, k->most, k->rank, k->at, rounded))
    return -1;
  return measure(k->pairs, k->at, k->receiver, k->sender, k->offset, k->limit, k->square, k->close);
}

/* Of the pairs that are close, the first with the widest gap, -1 if there is none. A pair's gap is
   in its row of `table`, whose entries are `resolution` apart; found = gap, distance. */
long widest(long pairs, const unsigned char *close, const double *square, const long *row,
            const double *table, long steps, double resolution, double *found) {
  long place = -1;
  for (long p = 0; p < pairs; p++) {
    if (!close[p]) continue;
    const double distance = sqrt(square[p]);
    const long step = (long)(distance / resolution);
    const double gap = table[row[p] * steps + (step < steps ? step : steps - 1)];
    if (place >= 0 && !(gap > found[0])) continue;
    place = p, found[0] = gap, found[1] = distance;
  }
  return place;
}

/* Keep the edges of the pairs that `keep` names, in their order. `place` is room for a number of
   every edge, `number` for one of every pair. Arrays are those of a GraphBatch, shifts of REAL. */
void select(long atoms, long edges, long pairs, const unsigned char *keep, long *place,
            long *number, const long *edge, const REAL *shift, const long *first,
            const long *reverse, const long *pair, const long *pair_edge, long kept_edges,
            long kept_pairs, long *new_edge, REAL *new_shift, long *new_first, long *new_reverse,
            long *new_pair, long *new_pair_edge) {
  long count = 0;
  for (long e = 0; e < edges; e++) {
    place[e] = count;
    count += keep[pair[e]];
  }
  for (long n = 0; n <= atoms; n++) new_first[n] = first[n] < edges ? place[first[n]] : count;
  count = 0;
  for (long p = 0; p < pairs; p++) {
    number[p] = count;
    if (!keep[p]) continue;
    new_pair_edge[count] = place[pair_edge[p]];
    new_pair_edge[kept_pairs + count] = place[pair_edge[pairs + p]];
    count++;
  }
  for (long e = 0; e < edges; e++) {
    if (!keep[pair[e]]) continue;
    const long to = place[e];
    new_edge[to] = edge[e];
    new_edge[kept_edges + to] = edge[edges + e];
    for (int i = 0; i < 3; i++) new_shift[3 * to + i] = shift[3 * e + i];
    new_reverse[to] = place[reverse[e]];
    new_pair[to] = number[pair[e]];
  }
}
