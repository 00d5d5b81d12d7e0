/* 1 / (1 + exp(-x)) of a whole vector, to a few units in the last place; nan stays nan.
   exp(y) = 2^n exp(r) with |r| <= ln 2 / 2: n by adding a number so large that nothing but whole
   numbers is left, exp(r) by its series, 2^n by putting n where the exponent of a number lies. */
#define SINGLE (sizeof(real) == 4)
#define MANTISSA (SINGLE ? 23 : 52)
#define BIAS (SINGLE ? 127 : 1023)
#define FURTHEST ((real)(SINGLE ? 87 : 708)) /* beyond it exp is no ordinary number */
#define ROUNDING ((real)(SINGLE ? 12582912.0 : 6755399441055744.0)) /* 1.5 * 2^MANTISSA */
#define TERMS (SINGLE ? 8 : 14)

typedef __typeof__((vec){0} > (vec){0}) all_bits; /* whole numbers of the same size */

static inline vec choose(all_bits where, vec yes, vec no) {
  return (vec)((where & (all_bits)yes) | (~where & (all_bits)no));
}

static inline vec sigmoid(vec x) {
  static const double REMAINING[14] = {
      1.0,           1.0,           1.0 / 2,         1.0 / 6,         1.0 / 24,
      1.0 / 120,     1.0 / 720,     1.0 / 5040,      1.0 / 40320,     1.0 / 362880,
      1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
  const vec zero = {0};
  vec y = -x;
  y = choose(y > FURTHEST, zero + FURTHEST, y);
  y = choose(y < -FURTHEST, zero - FURTHEST, y);
  const vec shifted = y * (real)1.4426950408889634 + ROUNDING, n = shifted - ROUNDING;
  /* the first part of ln 2 has so few digits that n times it is exact */
  const vec r = (y - n * (real)0.693359375) + n * (real)2.12194440054690583e-4;
  vec series = zero + (real)REMAINING[TERMS - 1];
  for (int i = TERMS - 2; i >= 0; i--) series = series * r + (real)REMAINING[i];
  const vec large = zero + ROUNDING;
  const all_bits whole = (all_bits)shifted - (all_bits)large;
  const vec power = (vec)((whole + BIAS) << MANTISSA);
  return 1 / (1 + series * power);
}
