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
