/* The stages of one Runge-Kutta step, and of its reverse, for a slope that is a matrix times tanh (or relu) of the state.

   A step has six dependent products of a thin matrix (a row a trajectory) with one fixed square matrix. Calling a BLAS and a
   dozen tensor operations for each costs as much as the arithmetic; here a step is one call. The matrix is packed once into
   panels of 16 columns. Threads own columns, so a stage needs one barrier, and no result depends on how many threads there are.

   Built where a C compiler is found; without it the same steps are made of tensor operations. */

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#define PANEL 16

typedef float v8 __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4), may_alias)); /* for loads and stores anywhere */
typedef int32_t i8 __attribute__((vector_size(32)));

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx2,fma")))
int floater_usable(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define WIDE
#define INLINE static inline __attribute__((always_inline))
int floater_usable(void) { return 1; }
#endif

INLINE v8 load(const float *from) { return *(const v8u *)from; }
INLINE void store(float *to, v8 value) { *(v8u *)to = value; }
INLINE v8 all(float value) { return (v8){value, value, value, value, value, value, value, value}; }
INLINE v8 choose(i8 mask, v8 yes, v8 no) { return (v8)((mask & (i8)yes) | (~mask & (i8)no)); }

/* tanh: an odd polynomial near zero, 1 - 2/(exp(2|x|) + 1) elsewhere. */
INLINE v8 tanh8(v8 x) {
    i8 sign = (i8)x & (i8)all(-0.0f);
    v8 size = (v8)((i8)x ^ sign);
    v8 y = 2.0f * choose(size < all(9.1f), size, all(9.1f)); /* tanh is 1 in float32 from there on */
    y = choose(size == size, y, size);                       /* not a number stays one */
    v8 turns = y * 1.44269504f + 12582912.0f;                /* rounds to whole numbers in the low bits */
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

/* Rows of a thin product: out[r, 0:16] = left[r] · panel, or (add + that) ⊙ scale. */
#define MICRO(R)                                                                                                          \
    INLINE void micro##R(long depth, const float *left, long stride, const float *panel, float *out, const float *add,    \
                         const float *scale) {                                                                            \
        v8 low[R], high[R];                                                                                               \
        for (int r = 0; r < R; r++) low[r] = high[r] = all(0.0f);                                                         \
        for (long k = 0; k < depth; k++) {                                                                                \
            v8 b0 = *(const v8 *)(panel + k * PANEL), b1 = *(const v8 *)(panel + k * PANEL + 8);                          \
            for (int r = 0; r < R; r++) {                                                                                 \
                v8 a = all(left[r * stride + k]);                                                                         \
                low[r] += a * b0;                                                                                         \
                high[r] += a * b1;                                                                                        \
            }                                                                                                             \
        }                                                                                                                 \
        for (int r = 0; r < R; r++) {                                                                                     \
            v8 x = low[r], y = high[r];                                                                                   \
            if (add) {                                                                                                    \
                x = (x + load(add + r * stride)) * load(scale + r * stride);                                              \
                y = (y + load(add + r * stride + 8)) * load(scale + r * stride + 8);                                      \
            }                                                                                                             \
            store(out + r * stride, x);                                                                                   \
            store(out + r * stride + 8, y);                                                                               \
        }                                                                                                                 \
    }
MICRO(1) MICRO(2) MICRO(3) MICRO(4) MICRO(5) MICRO(6)

typedef struct {
    long rows, hidden, stages;
    const float *packed;
    int relu, threads;
    atomic_long arrived;
    void (*work)(void *job, long first, long last, long *met);
} Team;

static inline void pause_a_little(long turn) {
    if (turn > 4000)
        sched_yield();
#if defined(__x86_64__)
    else
        __builtin_ia32_pause();
#endif
}

/* Wait until every thread has come here `met` times. */
static void meet(Team *team, long *met) {
    if (team->threads < 2) return;
    long wanted = ++*met * team->threads;
    atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel);
    for (long turn = 0; atomic_load_explicit(&team->arrived, memory_order_acquire) < wanted; turn++) pause_a_little(turn);
}

WIDE static void product(const Team *team, const float *left, float *out, const float *add, const float *scale, long first,
                         long last) {
    long hidden = team->hidden;
    for (long column = first; column < last; column += PANEL) {
        const float *panel = team->packed + column * hidden;
        for (long row = 0; row < team->rows; row += 6) {
            long place = row * hidden;
            const float *l = left + place, *a = add ? add + place + column : 0, *c = add ? scale + place + column : 0;
            float *o = out + place + column;
            switch (team->rows - row) {
                case 1: micro1(hidden, l, hidden, panel, o, a, c); break;
                case 2: micro2(hidden, l, hidden, panel, o, a, c); break;
                case 3: micro3(hidden, l, hidden, panel, o, a, c); break;
                case 4: micro4(hidden, l, hidden, panel, o, a, c); break;
                case 5: micro5(hidden, l, hidden, panel, o, a, c); break;
                default: micro6(hidden, l, hidden, panel, o, a, c);
            }
        }
    }
}

/* sum_j weights[j] · terms[j] over some columns, then perhaps a nonlinearity. */
WIDE static void weigh(const Team *team, const float *weights, long stride, const float *terms, long count, float *out,
                       int nonlinear, long first, long last) {
    long hidden = team->hidden, width = team->rows * hidden;
    for (long row = 0; row < team->rows; row++)
        for (long i = row * hidden + first; i < row * hidden + last; i += 8) {
            v8 sum = all(weights[0]) * load(terms + i);
            for (long j = 1; j < count; j++) sum += all(weights[j * stride]) * load(terms + j * width + i);
            if (nonlinear) sum = team->relu ? relu8(sum) : tanh8(sum);
            store(out + i, sum);
        }
}

typedef struct {
    Team team;
    float *terms;   /* constants, inner state, slopes [count + stages, width] */
    const float *weights; /* [stages, count + stages] */
    float *kept;    /* [stages, width] */
    long count;
} Forward;

WIDE static void forward(void *job, long first, long last, long *met) {
    Forward *f = job;
    Team *team = &f->team;
    long width = team->rows * team->hidden;
    for (long s = 1; s < team->stages; s++) {
        float *kept = f->kept + s * width;
        weigh(team, f->weights + s * (f->count + team->stages), 1, f->terms, f->count + s, kept, 1, first, last);
        meet(team, met);
        product(team, kept, f->terms + (f->count + s) * width, 0, 0, first, last);
    }
}

typedef struct {
    Team team;
    float *tail;             /* cotangents of stages 2 … S, then of the inner state after the step [stages, width] */
    const float *reach;      /* coupling times length [stages + 1, stages] */
    float *slopes;           /* cotangents of slopes [stages, width]; rows 2 … S are written */
    float *next;             /* in: of the shared slope, from the step after; out: the same for the step before [width] */
    float *spread;           /* what outputs send to the stages [stages, width] */
    const float *shared;     /* what they send to the shared stage, from the step after [width] */
    const float *derivative; /* of the nonlinearity at the stages [stages, width] */
} Reverse;

WIDE static void reverse(void *job, long first, long last, long *met) {
    Reverse *r = job;
    Team *team = &r->team;
    long hidden = team->hidden, width = team->rows * hidden, stages = team->stages;
    for (long row = 0; row < team->rows; row++)
        for (long i = row * hidden + first; i < row * hidden + last; i += 8) {
            long end = (stages - 1) * width + i;
            store(r->slopes + end, load(r->next + i));
            store(r->spread + end, load(r->spread + end) + load(r->shared + i));
        }
    for (long s = stages - 1; s > 0; s--) {
        float *slope = r->slopes + s * width;
        if (s < stages - 1)
            weigh(team, r->reach + (s + 1) * stages + s, stages, r->tail + s * width, stages - s, slope, 0, first, last);
        meet(team, met);
        product(team, slope, r->tail + (s - 1) * width, r->spread + s * width, r->derivative + s * width, first, last);
    }
    weigh(team, r->reach + stages, stages, r->tail, stages, r->next, 0, first, last);
    for (long row = 0; row < team->rows; row++)
        for (long i = row * hidden + first; i < row * hidden + last; i += 8) {
            v8 sum = load(r->tail + i);
            for (long s = 1; s < stages; s++) sum += load(r->tail + s * width + i);
            store(r->tail + (stages - 1) * width + i, sum);
        }
}

/* The OpenMP runtime that torch has loaded: its threads are awake already. Without it, one thread does everything. */
static void (*run_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_number)(void);
static int (*thread_count)(void);

void floater_threads(void *parallel, void *number, void *count) {
    run_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))parallel;
    thread_number = (int (*)(void))number;
    thread_count = (int (*)(void))count;
}

static void labour(void *job) {
    Team *team = job;
    long panels = team->hidden / PANEL, met = 0, number = 0, threads = 1;
    if (team->threads > 1) {
        number = thread_number();
        threads = thread_count(); /* may be fewer than were asked for */
        team->threads = (int)threads; /* every thread writes the same */
    }
    team->work(job, panels * number / threads * PANEL, panels * (number + 1) / threads * PANEL, &met);
}

static void together(Team *team) {
    if (!run_parallel) team->threads = 1;
    if (team->threads > team->hidden / PANEL) team->threads = (int)(team->hidden / PANEL);
    if (team->threads > 1)
        run_parallel(labour, team, (unsigned)team->threads, 0);
    else
        labour(team);
}

void floater_pack(const float *matrix, long hidden, long by_row, long by_column, float *packed) {
    for (long first = 0; first < hidden; first += PANEL)
        for (long k = 0; k < hidden; k++)
            for (long i = 0; i < PANEL; i++) *packed++ = matrix[k * by_row + (first + i) * by_column];
}

void floater_forward(const float *packed, float *terms, const float *weights, float *kept, long count, long stages, long rows,
                     long hidden, int relu, int threads) {
    Forward job = {{rows, hidden, stages, packed, relu, threads, 0, forward}, terms, weights, kept, count};
    together(&job.team);
}

void floater_reverse(const float *packed, float *tail, const float *reach, float *slopes, float *next, float *spread,
                     const float *shared, const float *derivative, long stages, long rows, long hidden, int threads) {
    Reverse job = {{rows, hidden, stages, packed, 0, threads, 0, reverse}, tail, reach, slopes, next, spread, shared, derivative};
    together(&job.team);
}
