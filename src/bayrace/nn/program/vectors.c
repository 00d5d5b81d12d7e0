/* Numbers, vectors of LANES of them, and vectors that need not be aligned. */
typedef REAL real;
typedef real vec __attribute__((vector_size(LANES * sizeof(real))));
typedef real loose
    __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real)), may_alias));
#define AT(pointer) (*(loose *)(pointer))
#define UNROLL _Pragma("GCC unroll 8")
