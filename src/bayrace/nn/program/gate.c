/* Gates: scalars x become GAIN silu(x), and every other irrep is multiplied by 2 sigmoid(z), with a
   logit z of its own for each of its channels.

   own: adds, channels C, gated irreps I, then the components of each of these. Features (atoms, ...)
   are the scalars and then the gated irreps, component after component; logits are (atoms, C). */

//@ vectors
#define STEP(name) void name(const long *run, const long *own, void *const *arrays)
#define GAIN ((real)1.6765) /* of SiLU, as in bayrace.nn.radial */
#define ADDS(output) (own[0] >> (output) & 1)
#define PUT(add, pointer, value)      \
  do {                                \
    const vec result = value;         \
    if (add) AT(pointer) += result;   \
    else AT(pointer) = result;        \
  } while (0)
/* The rows of atom n in arrays of `wide` numbers, and what is done to each of them. */
#define ROW(place, wide) ((real *)arrays[place] + n * (wide))
#define EACH_ATOM                                                                              \
  const long C = own[1], I = own[2], *dims = own + 3, width = width_of(own);                   \
  _Pragma("omp parallel for num_threads(run[THREADS]) schedule(static) if (run[ATOMS] > 200)") \
  for (long n = 0; n < run[ATOMS]; n++)
#define EACH_VECTOR for (long c = 0; c < C; c += LANES)
#define EACH_COMPONENT(i) for (long k = c; k < dims[i] * C; k += C)

enum { THREADS, ATOMS, PAIRS, EDGES, STRUCTURES };

//@ sigmoid

/* Numbers of an atom's features. */
static inline long width_of(const long *own) {
  long rows = 1;
  for (long i = 0; i < own[2]; i++) rows += own[3 + i];
  return rows * own[1];
}

/* arrays: x, logits of every irrep; the gated features. */
STEP(gate) {
  EACH_ATOM {
    const real *x = ROW(0, width);
    real *y = ROW(1 + I, width);
    EACH_VECTOR AT(y + c) = GAIN * AT(x + c) * sigmoid(AT(x + c));
    x += C, y += C;
    for (long i = 0; i < I; x += dims[i] * C, y += dims[i] * C, i++)
      EACH_VECTOR {
        const vec open = 2 * sigmoid(AT(ROW(1 + i, C) + c));
        EACH_COMPONENT(i) AT(y + k) = open * AT(x + k);
      }
  }
}

/* arrays: x, logits, gradient of what `gate` gave; gradients of x and of every irrep's logits. */
STEP(gate_back) {
  EACH_ATOM {
    const real *x = ROW(0, width), *g = ROW(1 + I, width);
    real *by_x = ROW(2 + I, width);
    EACH_VECTOR {
      const vec at = AT(x + c), s = sigmoid(at);
      PUT(ADDS(0), by_x + c, GAIN * s * (1 + at * (1 - s)) * AT(g + c));
    }
    x += C, g += C, by_x += C;
    for (long i = 0; i < I; x += dims[i] * C, g += dims[i] * C, by_x += dims[i] * C, i++)
      EACH_VECTOR {
        const vec s = sigmoid(AT(ROW(1 + i, C) + c));
        vec both = {0};
        EACH_COMPONENT(i) {
          both += AT(g + k) * AT(x + k);
          PUT(ADDS(0), by_x + k, 2 * s * AT(g + k));
        }
        PUT(ADDS(1 + i), ROW(3 + I + i, C) + c, 2 * s * (1 - s) * both);
      }
  }
}

/* arrays: x, logits, g, then v and w, the gradients of what `gate_back` gave, of x and of every
   irrep's logits; gradients of g, of x and of every irrep's logits. */
STEP(gate_tangent) {
  EACH_ATOM {
    const long into = 3 + 2 * I; /* the first of the results */
    const real *x = ROW(0, width), *g = ROW(1 + I, width), *v = ROW(2 + I, width);
    real *by_g = ROW(into, width), *by_x = ROW(into + 1, width);
    EACH_VECTOR {
      const vec at = AT(x + c), s = sigmoid(at), moved = GAIN * AT(v + c) * s;
      PUT(ADDS(0), by_g + c, moved * (1 + at * (1 - s)));
      PUT(ADDS(1), by_x + c, moved * (1 - s) * (2 + at * (1 - 2 * s)) * AT(g + c));
    }
    long start = C;
    for (long i = 0; i < I; start += dims[i] * C, i++)
      EACH_VECTOR {
        const vec s = sigmoid(AT(ROW(1 + i, C) + c)), slope = 2 * s * (1 - s);
        const vec change = slope * AT(ROW(3 + I + i, C) + c);
        vec by_gate = {0}, both = {0};
        EACH_COMPONENT(i) {
          const long at = start + k;
          both += AT(g + at) * AT(x + at);
          by_gate += AT(g + at) * AT(v + at);
          PUT(ADDS(0), by_g + at, 2 * s * AT(v + at) + change * AT(x + at));
          PUT(ADDS(1), by_x + at, change * AT(g + at));
        }
        PUT(ADDS(2 + i), ROW(into + 2 + i, C) + c, slope * by_gate + change * (1 - 2 * s) * both);
      }
  }
}
