/* One Runge-Kutta step, and the reverse of many, for h = W2·act(W1·p + shift) + level.

   A step is a chain of thin products (one row per trajectory) with two fixed matrices. Calling BLAS
   and a dozen tensor operations for each would cost as much as the arithmetic; here a step is one
   call, with its polynomial and its error, and so are all steps of a block on the way back. The
   matrices are packed once into panels of 16 columns. Threads own columns, so a product needs one
   barrier, and no result depends on the number of threads.

   Products use AVX-512 where that is faster than AVX2; other processors get what the compiler makes
   of vectors of eight (NEON on ARM). All add up in the same order, so results agree to the bit
   wherever multiplication and addition are fused.

   Built where a C compiler is found; without it tensor operations compute the same steps. */

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PANEL 16
#define STRETCH 256 /* rows of a panel that stay in the L1 cache while all trajectories use them */

typedef float v8 __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4), may_alias)); /* for unaligned loads and stores */
typedef int32_t i8 __attribute__((vector_size(32)));

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))
#else
#define WIDE
#define INLINE static inline __attribute__((always_inline))
#endif

INLINE v8 load(const float *from) { return *(const v8u *)from; }
INLINE void store(float *to, v8 value) { *(v8u *)to = value; }
INLINE v8 all(float value) { return (v8){value, value, value, value, value, value, value, value}; }
INLINE v8 choose(i8 mask, v8 yes, v8 no) { return (v8)((mask & (i8)yes) | (~mask & (i8)no)); }

#if defined(__clang__) || __GNUC__ >= 12
#define REORDERED(x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)
#else
#define REORDERED(x, ...) __builtin_shuffle(x, (i8){__VA_ARGS__})
#endif

/* Pairs of x, turned by angles with cosines and sines (c0, s0, c1, s1, …); back: by the opposite angles. Every second sign is
   changed as a bit, after the product with the sine: then only the product with the cosine can be fused with the addition, and
   all compilers round alike. */
INLINE v8 turned8(v8 x, v8 angles, int back) {
    v8 cosine = REORDERED(angles, 0, 0, 2, 2, 4, 4, 6, 6), sine = REORDERED(angles, 1, 1, 3, 3, 5, 5, 7, 7);
    v8 other = REORDERED(x, 1, 0, 3, 2, 5, 4, 7, 6);
    v8 first = {-0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f}, second = {0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f};
    v8 crossed = (v8)((i8)(other * sine) ^ (i8)(back ? second : first));
    return x * cosine + crossed;
}

/* tanh: an odd polynomial near zero, 1 - 2/(exp(2|x|) + 1) elsewhere. */
INLINE v8 tanh8(v8 x) {
    i8 sign = (i8)x & (i8)all(-0.0f);
    v8 size = (v8)((i8)x ^ sign);
    v8 y = 2.0f * choose(size < all(9.1f), size, all(9.1f)); /* tanh is 1 in float32 from here on */
    y = choose(size == size, y, size);                       /* NaN stays NaN */
    v8 turns = y * 1.44269504f + 12582912.0f;                /* rounds to an integer in the low bits */
    i8 power = (i8)turns - (i8)all(12582912.0f);
    v8 whole = turns - 12582912.0f;
    v8 r = y - whole * 0.693359375f;
    r = r + whole * 2.12194440e-4f;
    v8 e = all(1.9875691500e-4f);
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    e = e * (v8)((power + 127) << 23);
    v8 far = 1.0f - 2.0f / (e + 1.0f);
    v8 z = size * size;
    v8 p = all(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    v8 near = p * z * size + size;
    v8 value = choose(size < all(0.625f), near, far);
    value = choose(size == size, value, x);
    return (v8)((i8)value | sign);
}

INLINE v8 relu8(v8 x) { return choose(x > all(0.0f), x, choose(x == x, all(0.0f), x)); }

/* What is applied to a product before it is stored. */
enum { PLAIN, SHIFT, ACTIVATE, DERIVE };

INLINE v8 ended(v8 x, int end, int relu, const float *shift, const float *z) {
    if (end == SHIFT || end == ACTIVATE) x = x + load(shift);
    if (end == ACTIVATE) x = relu ? relu8(x) : tanh8(x);
    if (end == DERIVE) {
        v8 value = load(z);
        x = relu ? choose(value > all(0.0f), x, x * 0.0f) : x * (1.0f - value * value);
    }
    return x;
}

/* Some rows of a thin product, over a stretch of its depth: out[r, 0:16] = end((0 or out) + left[r] · panel). */
#define MICRO(R)                                                                                                          \
    INLINE void micro##R(long depth, const float *left, long across, const float *panel, float *out, long stride, int more, \
                         int end, int relu, const float *shift, const float *z, long apart) {                             \
        v8 low[R], high[R];                                                                                               \
        for (int r = 0; r < R; r++) {                                                                                     \
            low[r] = more ? load(out + r * stride) : all(0.0f);                                                           \
            high[r] = more ? load(out + r * stride + 8) : all(0.0f);                                                      \
        }                                                                                                                 \
        for (long k = 0; k < depth; k++) {                                                                                \
            v8 b0 = *(const v8 *)(panel + k * PANEL), b1 = *(const v8 *)(panel + k * PANEL + 8);                          \
            for (int r = 0; r < R; r++) {                                                                                 \
                v8 a = all(left[r * across + k]);                                                                         \
                low[r] += a * b0;                                                                                         \
                high[r] += a * b1;                                                                                        \
            }                                                                                                             \
        }                                                                                                                 \
        for (int r = 0; r < R; r++) {                                                                                     \
            store(out + r * stride, ended(low[r], end, relu, shift, z + r * apart));                                      \
            store(out + r * stride + 8, ended(high[r], end, relu, shift + 8, z + r * apart + 8));                         \
        }                                                                                                                 \
    }
MICRO(1) MICRO(2) MICRO(3) MICRO(4) MICRO(5) MICRO(6)

typedef struct {
    long stages, rows, dim, hidden;
    int relu, threads;
    atomic_long arrived;
    void (*work)(void *job, long number, long threads);
} Team;

/* A thread's columns of something `width` columns wide. */
static void share(long width, long number, long threads, long *first, long *last) {
    long panels = width / PANEL;
    *first = panels * number / threads * PANEL;
    *last = panels * (number + 1) / threads * PANEL;
}

/* Wait until every thread has reached this barrier; `passed` counts the barriers of this thread. */
static void barrier(Team *team, long threads, long *passed) {
    if (threads < 2) return;
    long target = ++*passed * threads;
    atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel);
    for (long spin = 0; atomic_load_explicit(&team->arrived, memory_order_acquire) < target; spin++) {
        if (spin > 4000) sched_yield();
#if defined(__x86_64__)
        else __builtin_ia32_pause();
#endif
    }
}

/* A matrix with `stride` elements between the starts of its rows. */
typedef struct {
    float *at;
    long stride;
} Block;

/* Columns first … last of end(left · matrix), for a packed matrix of this depth. `shift` is a row. */
typedef void Product(const Team *team, const float *packed, long depth, Block left, Block out, int end, const float *shift,
                     Block z, long first, long last);

WIDE static void product8(const Team *team, const float *packed, long depth, Block left, Block out, int end, const float *shift,
                          Block z, long first, long last) {
    for (long column = first; column < last; column += PANEL)
        for (long k = 0; k < depth; k += STRETCH) {
            long deep = depth - k < STRETCH ? depth - k : STRETCH;
            int now = k + deep < depth ? PLAIN : end;
            const float *panel = packed + column * depth + k * PANEL, *s = shift + column;
            for (long row = 0; row < team->rows; row += 6) {
                const float *l = left.at + row * left.stride + k, *v = z.at + row * z.stride + column;
                float *o = out.at + row * out.stride + column;
                switch (team->rows - row) {
                    case 1: micro1(deep, l, left.stride, panel, o, out.stride, k > 0, now, team->relu, s, v, z.stride); break;
                    case 2: micro2(deep, l, left.stride, panel, o, out.stride, k > 0, now, team->relu, s, v, z.stride); break;
                    case 3: micro3(deep, l, left.stride, panel, o, out.stride, k > 0, now, team->relu, s, v, z.stride); break;
                    case 4: micro4(deep, l, left.stride, panel, o, out.stride, k > 0, now, team->relu, s, v, z.stride); break;
                    case 5: micro5(deep, l, left.stride, panel, o, out.stride, k > 0, now, team->relu, s, v, z.stride); break;
                    default: micro6(deep, l, left.stride, panel, o, out.stride, k > 0, now, team->relu, s, v, z.stride);
                }
            }
        }
}

static Product *product = product8;

#if defined(__x86_64__)
/* The same with a whole row of a panel in one register. */
#define WIDER __attribute__((target("avx512f,avx2,fma")))
typedef float v16 __attribute__((vector_size(64)));
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias));

/* Rows of a thin product as above, of one panel or of two side by side, `apart` elements from one to the other. */
#define MICRO16(R)                                                                                                        \
    WIDER static void one##R(long depth, const float *left, long across, const float *panel, long apart, float *out,      \
                             long stride, int more) {                                                                     \
        (void)apart;                                                                                                      \
        v16 sum[R];                                                                                                       \
        for (int r = 0; r < R; r++) sum[r] = more ? (v16) * (const v16u *)(out + r * stride) : (v16){0};                  \
        for (long k = 0; k < depth; k++) {                                                                                \
            v16 b = *(const v16u *)(panel + k * PANEL);                                                                   \
            for (int r = 0; r < R; r++) sum[r] += left[r * across + k] * b;                                               \
        }                                                                                                                 \
        for (int r = 0; r < R; r++) *(v16u *)(out + r * stride) = sum[r];                                                 \
    }                                                                                                                     \
    WIDER static void two##R(long depth, const float *left, long across, const float *panel, long apart, float *out,      \
                             long stride, int more) {                                                                     \
        v16 low[R], high[R];                                                                                              \
        for (int r = 0; r < R; r++) {                                                                                     \
            low[r] = more ? (v16) * (const v16u *)(out + r * stride) : (v16){0};                                          \
            high[r] = more ? (v16) * (const v16u *)(out + r * stride + PANEL) : (v16){0};                                 \
        }                                                                                                                 \
        for (long k = 0; k < depth; k++) {                                                                                \
            v16 b0 = *(const v16u *)(panel + k * PANEL), b1 = *(const v16u *)(panel + apart + k * PANEL);                 \
            for (int r = 0; r < R; r++) {                                                                                 \
                low[r] += left[r * across + k] * b0;                                                                      \
                high[r] += left[r * across + k] * b1;                                                                     \
            }                                                                                                             \
        }                                                                                                                 \
        for (int r = 0; r < R; r++) {                                                                                     \
            *(v16u *)(out + r * stride) = low[r];                                                                         \
            *(v16u *)(out + r * stride + PANEL) = high[r];                                                                \
        }                                                                                                                 \
    }
MICRO16(1) MICRO16(2) MICRO16(3) MICRO16(4) MICRO16(5) MICRO16(6)
MICRO16(7) MICRO16(8) MICRO16(9) MICRO16(10) MICRO16(11) MICRO16(12)
typedef void Wide(long depth, const float *left, long across, const float *panel, long apart, float *out, long stride, int more);
static Wide *const wide[2][12] = {{one1, one2, one3, one4, one5, one6, one7, one8, one9, one10, one11, one12},
                                  {two1, two2, two3, two4, two5, two6, two7, two8, two9, two10, two11, two12}};

WIDE static void product16(const Team *team, const float *packed, long depth, Block left, Block out, int end, const float *shift,
                           Block z, long first, long last) {
    long blocks = (team->rows + 11) / 12;
    for (long column = first; column < last; column += 2 * PANEL) {
        long two = last - column > PANEL, width = two ? 2 * PANEL : PANEL;
        for (long k = 0; k < depth; k += STRETCH / 2) {
            long deep = depth - k < STRETCH / 2 ? depth - k : STRETCH / 2;
            for (long block = 0; block < blocks; block++) {
                long row = team->rows * block / blocks, count = team->rows * (block + 1) / blocks - row;
                wide[two][count - 1](deep, left.at + row * left.stride + k, left.stride, packed + column * depth + k * PANEL,
                                     depth * PANEL, out.at + row * out.stride + column, out.stride, k > 0);
            }
        }
        if (end == PLAIN) continue;
        for (long row = 0; row < team->rows; row++)
            for (long i = column; i < column + width; i += 8) {
                float *at = out.at + row * out.stride + i;
                store(at, ended(load(at), end, team->relu, shift + i, z.at + row * z.stride + i));
            }
    }
}

/* Nanoseconds of the fastest of some products of 12 rows. */
static long trial(Product *tried) {
    static float matrix[64 * 256] __attribute__((aligned(64))), left[12 * 256], out[12 * 64];
    Team team = {.rows = 12};
    long best = 0;
    for (int i = 0; i < 8; i++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        for (int j = 0; j < 8; j++)
            tried(&team, matrix, 256, (Block){left, 256}, (Block){out, 64}, PLAIN, out, (Block){out, 64}, 0, 64);
        clock_gettime(CLOCK_MONOTONIC, &end);
        long passed = (end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec;
        if (!best || passed < best) best = passed;
    }
    return best;
}

/* Whether the machine can run the kernel. Registers of products have 8 numbers; with `width` 16 they have 16 where the machine
   has AVX-512; with 0 only if that is faster, which depends on the machine, while results do not. */
int floater_usable(int width) {
    __builtin_cpu_init();
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return 0;
    product = product8;
    if (width != 8 && __builtin_cpu_supports("avx512f") && (width == 16 || 10 * trial(product16) < 9 * trial(product8)))
        product = product16;
    return 1;
}
#else
int floater_usable(int width) { return width < 16; }
#endif

/* How many numbers a register of the products has. */
int floater_width(void) { return product == product8 ? 8 : 16; }

/* start + sum_j weights[j * stride] · terms[j] over some columns; `start` may be missing. */
WIDE static void weigh(const Team *team, const float *weights, long stride, const float *terms, long count, const float *start,
                       Block out, long first, long last) {
    long dim = team->dim, size = team->rows * dim;
    for (long row = 0; row < team->rows; row++)
        for (long column = first; column < last; column += 8) {
            long i = row * dim + column;
            v8 sum = all(weights[0]) * load(terms + i);
            for (long j = 1; j < count; j++) sum += all(weights[j * stride]) * load(terms + j * size + i);
            store(out.at + row * out.stride + column, start ? sum + load(start + i) : sum);
        }
}

#define MOST_STAGES 16

typedef struct {
    Team team;
    const float *first, *second; /* packed W1ᵀ [dim, hidden] and W2ᵀ [hidden, dim] */
    float *terms;                /* the state, then the slopes of all stages [1 + stages, size]; the first slope is known */
    const double *coupling;      /* of the stages [stages, stages] */
    const float *sums;           /* weights of the stages in the polynomial, then in the error or the change [degree + 1, stages] */
    const float *shift, *level;  /* b1 and v1 [2, hidden], b2 and v2 [2, dim] */
    const float *seen;           /* what h sees of the time of each stage [stages] */
    float *tape;                 /* per stage and trajectory the state, then act(·) [stages, rows, dim + hidden] */
    const float *before;         /* p before the step [size] */
    float *polynomial;           /* p inside it [degree + 1, size] */
    float *error, *after;        /* its error or change, and p after it [size] */
    float *shifts, *levels;      /* scratch: what time and biases add [stages, hidden] and [stages, dim] */
    float *hidden_error;         /* scratch [rows·hidden] */
    double *squares;             /* 5 sums per panel of columns [panels of the wider layer, 5]; null if the method has no error */
    long degree;
    double length;
    float relative, absolute;
} Attempt;

INLINE double added(v8 x) {
    double sum = 0;
    for (int i = 0; i < 8; i++) sum += x[i];
    return sum;
}

/* Sums of squares of: error over scale (and the scale itself), act(·), its error, and the error of the hidden layer. */
WIDE static void measure(const Attempt *m, long d0, long d1, long h0, long h1) {
    const Team *team = &m->team;
    long dim = team->dim, hidden = team->hidden, both = dim + hidden;
    const float *weights = m->sums + m->degree * team->stages;
    i8 size = ~(i8)all(-0.0f);
    for (long column = d0; column < d1; column += PANEL) {
        v8 errors = all(0.0f), scales = all(0.0f);
        for (long row = 0; row < team->rows; row++)
            for (long i = row * dim + column; i < row * dim + column + PANEL; i += 8) {
                v8 one = (v8)((i8)load(m->before + i) & size), two = (v8)((i8)load(m->after + i) & size);
                v8 scale = choose(one > two, one, two) * m->relative + m->absolute;
                scale = choose(one == one, scale, one); /* NaN stays NaN */
                v8 share = load(m->error + i) / scale;
                errors += share * share;
                scales += scale;
            }
        m->squares[column / PANEL * 5] = added(errors);
        m->squares[column / PANEL * 5 + 1] = added(scales);
    }
    Block last = {m->tape + (team->stages - 1) * team->rows * both + dim, both}, scratch = {m->hidden_error, hidden};
    product(team, m->first, dim, (Block){m->error, dim}, scratch, DERIVE, m->error, last, h0, h1);
    for (long column = h0; column < h1; column += PANEL) {
        v8 squares = all(0.0f), errors = all(0.0f), wrongs = all(0.0f);
        for (long row = 0; row < team->rows; row++)
            for (long i = column; i < column + PANEL; i += 8) {
                v8 error = all(0.0f), wrong = load(m->hidden_error + row * hidden + i);
                for (long s = 0; s < team->stages; s++) {
                    v8 z = load(m->tape + (s * team->rows + row) * both + dim + i);
                    squares += z * z;
                    error += weights[s] * z;
                }
                errors += error * error;
                wrongs += wrong * wrong;
            }
        m->squares[column / PANEL * 5 + 2] = added(squares);
        m->squares[column / PANEL * 5 + 3] = added(errors);
        m->squares[column / PANEL * 5 + 4] = added(wrongs);
    }
}

/* All stages of a step, its polynomial, and how large its error is. */
WIDE static void attempt(void *job, long number, long threads) {
    Attempt *f = job;
    Team *team = &f->team;
    long dim = team->dim, hidden = team->hidden, size = team->rows * dim, both = dim + hidden, stages = team->stages, passed = 0;
    long d0, d1, h0, h1;
    share(dim, number, threads, &d0, &d1);
    share(hidden, number, threads, &h0, &h1);
    float weights[1 + MOST_STAGES], sums[(MOST_STAGES + 1) * MOST_STAGES];
    for (long i = 0; i < (f->degree + 1) * stages; i++) sums[i] = f->sums[i] * (float)f->length;
    for (long s = 1; s < stages; s++) {
        Block x = {f->tape + s * team->rows * both, both}, z = {x.at + dim, both}, slope = {f->terms + (1 + s) * size, dim};
        float *shift = f->shifts + s * hidden, *level = f->levels + s * dim;
        for (long i = h0; i < h1; i += 8) store(shift + i, load(f->shift + i) + f->seen[s] * load(f->shift + hidden + i));
        for (long i = d0; i < d1; i += 8) store(level + i, load(f->level + i) + f->seen[s] * load(f->level + dim + i));
        weights[0] = 1;
        for (long j = 0; j < s; j++) weights[1 + j] = (float)(f->length * f->coupling[s * stages + j]);
        weigh(team, weights, 1, f->terms, 1 + s, 0, x, d0, d1);
        barrier(team, threads, &passed);
        product(team, f->first, dim, x, z, ACTIVATE, shift, z, h0, h1);
        barrier(team, threads, &passed);
        product(team, f->second, hidden, z, slope, SHIFT, level, slope, d0, d1);
    }
    for (long row = 0; row < team->rows; row++)
        for (long i = row * dim + d0; i < row * dim + d1; i += 8) {
            v8 start = load(f->before + i), after = start;
            store(f->polynomial + i, start);
            for (long r = 0; r <= f->degree; r++) {
                v8 sum = all(sums[r * stages]) * load(f->terms + size + i);
                for (long s = 1; s < stages; s++) sum += all(sums[r * stages + s]) * load(f->terms + (1 + s) * size + i);
                store(r < f->degree ? f->polynomial + (1 + r) * size + i : f->error + i, sum);
                if ((r < f->degree) == (f->squares != 0)) after += sum;
            }
            store(f->after + i, after);
        }
    if (!f->squares) return;
    barrier(team, threads, &passed);
    measure(f, d0, d1, h0, h1);
}

/* Consecutive steps. Neighbours share a stage, so that all of them have n = count·(stages - 1) + 1. */
typedef struct {
    Team team;
    const float *first, *second; /* packed W1 [hidden, dim] and W2 [dim, hidden] */
    float *tail;                 /* cotangents of stages 2 … S, then of the state after the last step [stages, size]; on return,
                                    before the first */
    const float *scaled;         /* coupling times the length of each step [count, stages + 1, stages] */
    float *slopes;               /* cotangents of slopes [n, size]; all but the first row are written */
    float *inner;                /* cotangents of W1·p + shift [n, rows·hidden]; all but the first row are written */
    float *next;                 /* cotangent of the slope shared with the step after; on return, with the step before [size] */
    const float *outputs;        /* cotangents that outputs send to the slopes of each step [count, stages, size] */
    const float *shared;         /* those that outputs of the step after send to the shared slope [size] */
    const float *tape;           /* as in Attempt, of all stages [n, rows, dim + hidden] */
    long count;
} Reverse;

WIDE static void reverse(void *job, long number, long threads) {
    Reverse *r = job;
    Team *team = &r->team;
    long dim = team->dim, hidden = team->hidden, size = team->rows * dim, deep = team->rows * hidden, stages = team->stages;
    long d0, d1, h0, h1, passed = 0;
    share(dim, number, threads, &d0, &d1);
    share(hidden, number, threads, &h0, &h1);
    for (long step = r->count - 1; step >= 0; step--) {
        long row0 = step * (stages - 1);
        float *slopes = r->slopes + row0 * size, *inners = r->inner + row0 * deep;
        const float *scaled = r->scaled + step * (stages + 1) * stages, *outputs = r->outputs + step * stages * size;
        const float *shared = step < r->count - 1 ? outputs + stages * size : r->shared, *tape = r->tape + row0 * (size + deep);
        for (long row = 0; row < team->rows; row++)
            for (long i = row * dim + d0; i < row * dim + d1; i += 8)
                store(slopes + (stages - 1) * size + i,
                      load(r->next + i) + load(outputs + (stages - 1) * size + i) + load(shared + i));
        for (long s = stages - 1; s > 0; s--) {
            Block slope = {slopes + s * size, dim}, inner = {inners + s * deep, hidden}, out = {r->tail + (s - 1) * size, dim};
            Block z = {(float *)tape + s * (size + deep) + dim, dim + hidden};
            if (s < stages - 1)
                weigh(team, scaled + (s + 1) * stages + s, stages, r->tail + s * size, stages - s, outputs + s * size, slope, d0, d1);
            barrier(team, threads, &passed);
            product(team, r->second, dim, slope, inner, DERIVE, z.at, z, h0, h1);
            barrier(team, threads, &passed);
            product(team, r->first, hidden, inner, out, PLAIN, out.at, out, d0, d1);
        }
        weigh(team, scaled + stages, stages, r->tail, stages, 0, (Block){r->next, dim}, d0, d1);
        for (long row = 0; row < team->rows; row++)
            for (long i = row * dim + d0; i < row * dim + d1; i += 8) {
                v8 sum = load(r->tail + i);
                for (long s = 1; s < stages; s++) sum += load(r->tail + s * size + i);
                store(r->tail + (stages - 1) * size + i, sum);
            }
    }
}

typedef struct {
    Team team;
    const float *first, *second; /* as in Attempt, or in Reverse */
    const float *shift, *level;  /* what time and biases add [hidden] and [dim]; not used in reverse */
    float *tape;                 /* per trajectory the state, then act(·) [rows, dim + hidden] */
    float *slope;                /* of the state, or its cotangent [size] */
    float *inner, *out;          /* in reverse: cotangents of W1·p + shift [rows·hidden] and of the state [size] */
} Stage;

WIDE static void stage(void *job, long number, long threads) {
    Stage *f = job;
    Team *team = &f->team;
    long dim = team->dim, hidden = team->hidden, both = dim + hidden, d0, d1, h0, h1, passed = 0;
    share(dim, number, threads, &d0, &d1);
    share(hidden, number, threads, &h0, &h1);
    Block x = {f->tape, both}, z = {f->tape + dim, both}, slope = {f->slope, dim};
    product(team, f->first, dim, x, z, ACTIVATE, f->shift, z, h0, h1);
    barrier(team, threads, &passed);
    product(team, f->second, hidden, z, slope, SHIFT, f->level, slope, d0, d1);
}

WIDE static void unstage(void *job, long number, long threads) {
    Stage *r = job;
    Team *team = &r->team;
    long dim = team->dim, hidden = team->hidden, d0, d1, h0, h1, passed = 0;
    share(dim, number, threads, &d0, &d1);
    share(hidden, number, threads, &h0, &h1);
    Block slope = {r->slope, dim}, inner = {r->inner, hidden}, out = {r->out, dim}, z = {r->tape + dim, dim + hidden};
    product(team, r->second, dim, slope, inner, DERIVE, z.at, z, h0, h1);
    barrier(team, threads, &passed);
    product(team, r->first, hidden, inner, out, PLAIN, out.at, out, d0, d1);
}

#define DEEP 256 /* rows of both sides that are added between two visits to the result */

typedef struct {
    Team team;         /* `hidden` columns on the left, `dim` on the right */
    Block left, right; /* [count, hidden] and [count, dim] */
    float *out;        /* leftᵀ · right is added to it [hidden, dim] */
    float *groups;     /* for columns of the left side, eight by eight [hidden / 8, DEEP, 8] */
    long count;
} Outer;

/* R rows and WIDTH columns of out += leftᵀ · right; every element is one sum from the first row to the last. */
#define OUTER(NAME, ATTRIBUTES, V, VU, LANES, R, WIDTH)                                                                 \
    ATTRIBUTES static void NAME(long depth, const float *left, const float *right, float *out, long stride) {           \
        V sum[R][WIDTH / LANES];                                                                                        \
        for (int r = 0; r < R; r++)                                                                                     \
            for (int i = 0; i < WIDTH / LANES; i++) sum[r][i] = *(const VU *)(out + r * stride + i * LANES);            \
        for (long k = 0; k < depth; k++) {                                                                              \
            V row[WIDTH / LANES];                                                                                       \
            for (int i = 0; i < WIDTH / LANES; i++) row[i] = *(const VU *)(right + k * WIDTH + i * LANES);              \
            for (int r = 0; r < R; r++)                                                                                 \
                for (int i = 0; i < WIDTH / LANES; i++) sum[r][i] += left[k * 8 + r] * row[i];                          \
        }                                                                                                               \
        for (int r = 0; r < R; r++)                                                                                     \
            for (int i = 0; i < WIDTH / LANES; i++) *(VU *)(out + r * stride + i * LANES) = sum[r][i];                  \
    }
OUTER(outer4, WIDE, v8, v8u, 8, 4, 16)
#if defined(__x86_64__)
OUTER(outer8, WIDER, v16, v16u, 16, 8, 16)
OUTER(outer8by32, WIDER, v16, v16u, 16, 8, 32)
#endif

/* Eight rows of the result, of `width` columns. */
static void outer_rows(long depth, const float *left, const float *right, float *out, long stride, long width) {
#if defined(__x86_64__)
    if (product == product16) {
        (width > PANEL ? outer8by32 : outer8)(depth, left, right, out, stride);
        return;
    }
#endif
    (void)width;
    outer4(depth, left, right, out, stride);
    outer4(depth, left + 4, right, out + 4 * stride, stride);
}

WIDE static void outer(void *job, long number, long threads) {
    Outer *o = job;
    Team *team = &o->team;
    long d0, d1, h0, h1, passed = 0, most = product == product8 ? PANEL : 2 * PANEL;
    share(team->dim, number, threads, &d0, &d1);
    share(team->hidden, number, threads, &h0, &h1);
    float panel[DEEP * 2 * PANEL] __attribute__((aligned(64)));
    for (long first = 0; first < o->count; first += DEEP) {
        long depth = o->count - first < DEEP ? o->count - first : DEEP;
        const float *left = o->left.at + first * o->left.stride, *right = o->right.at + first * o->right.stride;
        for (long i = h0; i < h1; i += 8)
            for (long k = 0; k < depth; k++) store(o->groups + i * DEEP + k * 8, load(left + k * o->left.stride + i));
        barrier(team, threads, &passed);
        for (long column = d0, width; column < d1; column += width) {
            width = d1 - column < most ? PANEL : most;
            for (long k = 0; k < depth; k++)
                for (long i = 0; i < width; i += 8) store(panel + k * width + i, load(right + k * o->right.stride + column + i));
            for (long i = 0; i < team->hidden; i += 8)
                outer_rows(depth, o->groups + i * DEEP, panel, o->out + i * team->dim + column, team->dim, width);
        }
        barrier(team, threads, &passed);
    }
}

#define CHUNK 1024 /* columns whose rows stay in the L1 cache */

typedef struct {
    Team team;
    const float *weights, *rows; /* [count, depth] and [depth, size] */
    float *out;                  /* [count, size] */
    long count, depth, size;
} Mix;

/* R rows of weights · rows, over some columns; every element is one sum from the first row to the last. */
#define MIX(R)                                                                                                          \
    INLINE void mix##R(const Mix *m, long row, long first, long last) {                                                 \
        for (long i = first; i < last; i += 16) {                                                                       \
            v8 low[R], high[R];                                                                                         \
            for (int r = 0; r < R; r++) low[r] = high[r] = all(0.0f);                                                   \
            for (long k = 0; k < m->depth; k++) {                                                                       \
                v8 b0 = load(m->rows + k * m->size + i), b1 = load(m->rows + k * m->size + i + 8);                      \
                for (int r = 0; r < R; r++) {                                                                           \
                    v8 a = all(m->weights[(row + r) * m->depth + k]);                                                   \
                    low[r] += a * b0;                                                                                   \
                    high[r] += a * b1;                                                                                  \
                }                                                                                                       \
            }                                                                                                           \
            for (int r = 0; r < R; r++) {                                                                               \
                store(m->out + (row + r) * m->size + i, low[r]);                                                        \
                store(m->out + (row + r) * m->size + i + 8, high[r]);                                                   \
            }                                                                                                           \
        }                                                                                                               \
    }
MIX(1) MIX(2) MIX(3) MIX(4) MIX(5) MIX(6)

WIDE static void mix(void *job, long number, long threads) {
    Mix *m = job;
    long begin, end;
    share(m->size, number, threads, &begin, &end);
    for (long first = begin; first < end; first += CHUNK) {
        long last = first + CHUNK < end ? first + CHUNK : end;
        for (long row = 0; row < m->count; row += 6) switch (m->count - row) {
                case 1: mix1(m, row, first, last); break;
                case 2: mix2(m, row, first, last); break;
                case 3: mix3(m, row, first, last); break;
                case 4: mix4(m, row, first, last); break;
                case 5: mix5(m, row, first, last); break;
                default: mix6(m, row, first, last);
            }
    }
}

typedef struct {
    Team team;
    const float *weights;  /* [count, depth] */
    const int64_t *places; /* number of the first of `depth` consecutive rows that each sum takes [count] */
    float *rows;           /* [·, size], with `stride` elements between the starts of rows */
    float *sums;           /* [count, size] */
    long count, depth, size, stride;
    float *bias;         /* added to every sum [size]; for the transpose, what all sums add up to; may be null */
    const float *angles; /* cosines and sines that pairs of columns are turned by, before the bias [count, size]; may be null */
} Pick;

/* The next sums before `end` that take the same rows, at most 4. */
INLINE int alike(const Pick *p, long n, long end) {
    int count = 1;
    while (count < 4 && n + count < end && p->places[n + count] == p->places[n]) count++;
    return count;
}

/* R sums that take the same rows: sums[n + r] = bias + turned(sum_k weights[n + r, k] · rows[places[n] + k]), over some columns. */
#define PICK(R)                                                                                                         \
    INLINE void pick##R(const Pick *p, long n, long first, long last) {                                                 \
        const float *weights = p->weights + n * p->depth, *rows = p->rows + p->places[n] * p->stride;                   \
        for (long i = first; i < last; i += 8) {                                                                        \
            v8 sum[R], bias = p->bias ? load(p->bias + i) : all(0.0f);                                                  \
            for (int r = 0; r < R; r++) sum[r] = p->angles ? all(0.0f) : bias;                                          \
            for (long k = 0; k < p->depth; k++) {                                                                       \
                v8 row = load(rows + k * p->stride + i);                                                                \
                for (int r = 0; r < R; r++) sum[r] += all(weights[r * p->depth + k]) * row;                             \
            }                                                                                                           \
            if (p->angles)                                                                                              \
                for (int r = 0; r < R; r++) sum[r] = turned8(sum[r], load(p->angles + (n + r) * p->size + i), 0) + bias;\
            for (int r = 0; r < R; r++) store(p->sums + (n + r) * p->size + i, sum[r]);                                 \
        }                                                                                                               \
    }                                                                                                                   \
    /* The transpose: rows[places[n] + k] += sum_r weights[n + r, k] · turned back(sums[n + r]). */                     \
    INLINE void unpick##R(const Pick *p, long n, long first, long last, float *out, long stride) {                      \
        const float *weights = p->weights + n * p->depth;                                                               \
        float *rows = out + p->places[n] * stride;                                                                      \
        for (long i = first; i < last; i += 8) {                                                                        \
            v8 sum[R];                                                                                                  \
            for (int r = 0; r < R; r++) sum[r] = load(p->sums + (n + r) * p->size + i);                                 \
            if (p->bias) {                                                                                              \
                v8 total = load(p->bias + i);                                                                           \
                for (int r = 0; r < R; r++) total += sum[r];                                                            \
                store(p->bias + i, total);                                                                              \
            }                                                                                                           \
            if (p->angles)                                                                                              \
                for (int r = 0; r < R; r++) sum[r] = turned8(sum[r], load(p->angles + (n + r) * p->size + i), 1);       \
            for (long k = 0; k < p->depth; k++) {                                                                       \
                float *at = rows + k * stride + i - first;                                                              \
                v8 row = load(at);                                                                                      \
                for (int r = 0; r < R; r++) row += all(weights[r * p->depth + k]) * sum[r];                             \
                store(at, row);                                                                                         \
            }                                                                                                           \
        }                                                                                                               \
    }
PICK(1) PICK(2) PICK(3) PICK(4)

/* Threads share the sums out, not their columns: two threads that wrote to halves of the same rows were three times slower than
   one, probably because each prefetched, and so took away, what the other was about to write. */
WIDE static void pick(void *job, long number, long threads) {
    Pick *p = job;
    long end = p->count * (number + 1) / threads;
    for (long n = p->count * number / threads, count; n < end; n += count) switch (count = alike(p, n, end)) {
            case 1: pick1(p, n, 0, p->size); break;
            case 2: pick2(p, n, 0, p->size); break;
            case 3: pick3(p, n, 0, p->size); break;
            default: pick4(p, n, 0, p->size);
        }
}

WIDE static void unpick_columns(const Pick *p, long first, long last, float *out, long stride) {
    for (long n = 0, count; n < p->count; n += count) switch (count = alike(p, n, p->count)) {
            case 1: unpick1(p, n, first, last, out, stride); break;
            case 2: unpick2(p, n, first, last, out, stride); break;
            case 3: unpick3(p, n, first, last, out, stride); break;
            default: unpick4(p, n, first, last, out, stride);
        }
}

/* Threads share the columns out, so that the order of additions does not depend on their number. Each adds in memory of its own,
   for the reason above, and copies the result. */
WIDE static void unpick(void *job, long number, long threads) {
    Pick *p = job;
    long first, last, height = 0;
    share(p->size, number, threads, &first, &last);
    for (long n = 0; n < p->count; n++)
        if (p->places[n] + p->depth > height) height = p->places[n] + p->depth;
    size_t width = (size_t)(last - first) * sizeof(float);
    float *own = threads > 1 && width ? malloc((size_t)height * width) : 0;
    if (!own) {
        unpick_columns(p, first, last, p->rows + first, p->stride);
        return;
    }
    for (long row = 0; row < height; row++) memcpy(own + row * (last - first), p->rows + row * p->stride + first, width);
    unpick_columns(p, first, last, own, last - first);
    for (long row = 0; row < height; row++) memcpy(p->rows + row * p->stride + first, own + row * (last - first), width);
    free(own);
}

/* The OpenMP runtime that torch has loaded: its threads are already awake. Without it, one thread does everything. */
static void (*run_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_number)(void);
static int (*thread_count)(void);

void floater_threads(void *parallel, void *number, void *count) {
    run_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))parallel;
    thread_number = (int (*)(void))number;
    thread_count = (int (*)(void))count;
}

static void run_share(void *job) {
    Team *team = job;
    if (team->threads > 1)
        team->work(job, thread_number(), thread_count()); /* may be fewer than requested */
    else
        team->work(job, 0, 1);
}

static void run(Team *team) {
    long least = team->dim < team->hidden ? team->dim : team->hidden;
    if (team->threads > least / PANEL) team->threads = (int)(least / PANEL);
    if (run_parallel && team->threads > 1) {
        run_parallel(run_share, team, (unsigned)team->threads, 0);
    } else {
        team->threads = 1;
        run_share(team);
    }
}

/* Copy a matrix [depth, width] into panels of 16 columns; its rows or its columns are contiguous. */
void floater_pack(const float *matrix, long depth, long width, long by_row, long by_column, float *packed) {
    for (long first = 0; first < width; first += PANEL)
        for (long k = 0; k < depth; k += PANEL, packed += PANEL * PANEL) {
            const float *from = matrix + k * by_row + first * by_column;
            if (by_column == 1)
                for (long r = 0; r < PANEL; r++)
                    for (long i = 0; i < PANEL; i++) packed[r * PANEL + i] = from[r * by_row + i];
            else
                for (long i = 0; i < PANEL; i++)
                    for (long r = 0; r < PANEL; r++) packed[r * PANEL + i] = from[r * by_row + i * by_column];
        }
}

/* leftᵀ · right is added to out [left_width, right_width]; both have `count` rows. `groups` is scratch [left_width · 256]. */
void floater_add_outer(const float *left, const float *right, float *out, float *groups, long count, long left_width,
                       long right_width, long left_stride, long right_stride, int threads) {
    Outer job = {{0, 0, right_width, left_width, 0, threads, 0, outer}, {(float *)left, left_stride},
                 {(float *)right, right_stride}, out, groups, count};
    run(&job.team);
}

/* weights [count, depth] · rows [depth, size], for few long rows. */
void floater_mix(const float *weights, const float *rows, float *out, long count, long depth, long size, int threads) {
    Mix job = {{0, 0, size, size, 0, threads, 0, mix}, weights, rows, out, count, depth, size};
    run(&job.team);
}

/* Sums of rows times weights, turned and onto a bias; new names, so that an old library is not called with these arguments. */
void floater_pick_turned(const float *weights, const int64_t *places, float *rows, float *sums, long count, long depth, long size,
                         long stride, int threads, float *bias, const float *angles) {
    Pick job = {{0, 0, size, size, 0, threads, 0, pick}, weights, places, rows, sums, count, depth, size, stride, bias, angles};
    run(&job.team);
}

void floater_unpick_turned(const float *weights, const int64_t *places, float *rows, float *sums, long count, long depth, long size,
                           long stride, int threads, float *bias, const float *angles) {
    Pick job = {{0, 0, size, size, 0, threads, 0, unpick}, weights, places, rows, sums, count, depth, size, stride, bias, angles};
    run(&job.team);
}

void floater_stage(const float *first, const float *second, const float *shift, const float *level, float *tape, float *slope,
                   long stages, long rows, long dim, long hidden, int relu, int threads) {
    Stage job = {{stages, rows, dim, hidden, relu, threads, 0, stage}, first, second, shift, level, tape, slope, 0, 0};
    run(&job.team);
}

void floater_unstage(const float *first, const float *second, float *tape, float *slope, float *inner, float *out, long stages,
                     long rows, long dim, long hidden, int relu, int threads) {
    Stage job = {{stages, rows, dim, hidden, relu, threads, 0, unstage}, first, second, 0, 0, tape, slope, inner, out};
    run(&job.team);
}

/* One attempt of a step. `scratch` [stages·(hidden + dim) + rows·hidden]. */
void floater_attempt(const float *first, const float *second, float *terms, const double *coupling, const float *sums,
                     const float *shift, const float *level, const float *seen, float *tape, const float *before, float *polynomial,
                     float *error, float *after, float *scratch, double *squares, long stages, long rows, long dim, long hidden,
                     int relu, int threads, long degree, double length, float relative, float absolute) {
    Attempt job = {{stages, rows, dim, hidden, relu, threads, 0, attempt}, first, second, terms, coupling, sums, shift, level, seen,
                   tape, before, polynomial, error, after, scratch, scratch + stages * hidden, scratch + stages * (hidden + dim),
                   squares, degree, length, relative, absolute};
    run(&job.team);
}

/* Back through consecutive steps. */
void floater_reverse_steps(const float *first, const float *second, float *tail, const float *scaled, float *slopes, float *inner,
                           float *next, const float *outputs, const float *shared, const float *tape, long stages, long rows,
                           long dim, long hidden, int relu, int threads, long count) {
    Reverse job = {{stages, rows, dim, hidden, relu, threads, 0, reverse}, first, second, tail, scaled, slopes, inner, next, outputs,
                   shared, tape, count};
    run(&job.team);
}
