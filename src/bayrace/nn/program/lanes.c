/* The sum of all lanes, halving the vector again and again where the compiler can. */
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE __builtin_shufflevector
#endif
#endif
typedef real two __attribute__((vector_size(2 * sizeof(real))));
typedef real four __attribute__((vector_size(4 * sizeof(real))));
typedef real eight __attribute__((vector_size(8 * sizeof(real))));

static inline real total(vec v) {
#ifndef SHUFFLE
  real sum = 0;
  for (int i = 0; i < LANES; i++) sum += v[i];
  return sum;
#else
#if LANES == 16
  const eight a = SHUFFLE(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                  SHUFFLE(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif LANES == 8
  const eight a = v;
#endif
#if LANES >= 8
  const four b = SHUFFLE(a, a, 0, 1, 2, 3) + SHUFFLE(a, a, 4, 5, 6, 7);
#elif LANES == 4
  const four b = v;
#endif
#if LANES >= 4
  const two c = SHUFFLE(b, b, 0, 1) + SHUFFLE(b, b, 2, 3);
#else
  const two c = v;
#endif
  return c[0] + c[1];
#endif
}

/* Four rows of four numbers, turned. */
static inline void turn_four(const real *from, long columns, real *to, long rows) {
#ifdef SHUFFLE
  typedef real loose_four
      __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
  const four a = *(loose_four *)from, b = *(loose_four *)(from + columns);
  const four c = *(loose_four *)(from + 2 * columns), d = *(loose_four *)(from + 3 * columns);
  const four ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5);
  const four AB = SHUFFLE(a, b, 2, 6, 3, 7), CD = SHUFFLE(c, d, 2, 6, 3, 7);
  *(loose_four *)to = SHUFFLE(ab, cd, 0, 1, 4, 5);
  *(loose_four *)(to + rows) = SHUFFLE(ab, cd, 2, 3, 6, 7);
  *(loose_four *)(to + 2 * rows) = SHUFFLE(AB, CD, 0, 1, 4, 5);
  *(loose_four *)(to + 3 * rows) = SHUFFLE(AB, CD, 2, 3, 6, 7);
#else
  for (int k = 0; k < 4; k++)
    for (int c = 0; c < 4; c++) to[c * rows + k] = from[k * columns + c];
#endif
}
