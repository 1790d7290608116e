/* Runs the kernel's functions on fixed numbers and prints a hash of each result: compilers and processors that round alike
   print the same lines. Compiled together with src/floater/ode/_kernel.c; the argument is the number for floater_usable. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int floater_usable(int width);
int floater_width(void);
void floater_pack(const float *, long, long, long, long, float *);
void floater_mix(const float *, const float *, float *, long, long, long, int);
void floater_pick_turned(const float *, const int64_t *, float *, float *, long, long, long, long, int, float *, const float *);
void floater_unpick_turned(const float *, const int64_t *, float *, float *, long, long, long, long, int, float *, const float *);
void floater_attempt(const float *, const float *, float *, const double *, const float *, const float *, const float *, const float *,
                     float *, const float *, float *, float *, float *, float *, double *, long, long, long, long, int, int, long,
                     double, float, float);
void floater_reverse_steps(const float *, const float *, float *, const float *, float *, float *, float *, const float *,
                           const float *, const float *, long, long, long, long, int, int, long);
void floater_add_outer(const float *, const float *, float *, float *, long, long, long, long, long, int);

enum { STAGES = 7, DEGREE = 4, DIM = 64, HIDDEN = 48, MOST = 26 };

static uint32_t state = 1;
static float *numbers(long count, float scale) {
    float *at = aligned_alloc(64, (size_t)(count * 4 + 63) / 64 * 64);
    for (long i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        at[i] = scale * ((float)(state >> 8) / 8388608.0f - 1.0f);
    }
    return at;
}

static void print(const char *name, long rows, const float *at, long count) {
    uint64_t hash = 14695981039346656037u;
    for (long i = 0; i < count * 4; i++) hash = (hash ^ ((const unsigned char *)at)[i]) * 1099511628211u;
    printf("%s %ld %016llx\n", name, rows, (unsigned long long)hash);
}

int main(int count, char **arguments) {
    if (!floater_usable(count > 1 ? atoi(arguments[1]) : 0)) return 1;
    printf("width %d\n", floater_width());
    for (long rows = 1; rows <= MOST; rows++) {
        long size = rows * DIM, deep = rows * HIDDEN;
        float *first = numbers(DIM * HIDDEN, 0.3f), *second = numbers(DIM * HIDDEN, 0.3f);
        float *packed1 = numbers(DIM * HIDDEN, 0), *packed2 = numbers(DIM * HIDDEN, 0);
        float *back1 = numbers(DIM * HIDDEN, 0), *back2 = numbers(DIM * HIDDEN, 0);
        floater_pack(first, DIM, HIDDEN, HIDDEN, 1, packed1);
        floater_pack(second, HIDDEN, DIM, DIM, 1, packed2);
        floater_pack(first, HIDDEN, DIM, 1, HIDDEN, back1);
        floater_pack(second, DIM, HIDDEN, 1, DIM, back2);
        float *terms = numbers((1 + STAGES) * size, 1), *tape = numbers((2 * STAGES - 1) * (size + deep), 1);
        float *sums = numbers((DEGREE + 1) * STAGES, 0.5f), *shift = numbers(2 * HIDDEN, 1), *level = numbers(2 * DIM, 1);
        float *coupled = numbers(STAGES * STAGES, 0.5f), *seen = numbers(STAGES, 1), *before = numbers(size, 1);
        float *polynomial = numbers((DEGREE + 1) * size, 1), *error = numbers(size, 1), *after = numbers(size, 1);
        float *scratch = numbers(STAGES * (HIDDEN + DIM) + deep, 1);
        double coupling[STAGES * STAGES], squares[DIM / 16 * 5] = {0};
        for (long i = 0; i < STAGES * STAGES; i++) coupling[i] = coupled[i];
        floater_attempt(packed1, packed2, terms, coupling, sums, shift, level, seen, tape, before, polynomial, error, after, scratch,
                        rows % 3 ? squares : 0, STAGES, rows, DIM, HIDDEN, rows % 2, 1, DEGREE, 0.7, 1e-3f, 1e-4f);
        print("slopes", rows, terms, (1 + STAGES) * size);
        print("tape", rows, tape + size + deep, (STAGES - 1) * (size + deep));
        print("polynomial", rows, polynomial, (DEGREE + 1) * size);
        print("error", rows, error, size);
        print("after", rows, after, size);
        print("squares", rows, (float *)squares, DIM / 16 * 5 * 2);
        long all = 2 * STAGES - 1; /* stages of two steps */
        float *tail = numbers(STAGES * size, 1), *slopes = numbers(all * size, 1), *inner = numbers(all * deep, 1);
        float *scaled = numbers(2 * (STAGES + 1) * STAGES, 0.1f), *next = numbers(size, 1), *shared = numbers(size, 1);
        float *outputs = numbers(2 * STAGES * size, 1);
        floater_reverse_steps(back1, back2, tail, scaled, slopes, inner, next, outputs, shared, tape, STAGES, rows, DIM, HIDDEN,
                              rows % 2, 1, 2);
        print("cotangents", rows, tail, STAGES * size);
        /* more rows than the kernel takes at once, as columns of longer ones */
        long many = 40 * rows;
        float *grown = numbers(DIM * HIDDEN, 1), *left = numbers(many * (DIM + 8), 1), *right = numbers(many * (HIDDEN + 3), 1);
        floater_add_outer(left, right, grown, numbers(DIM * 256, 0), many, DIM, HIDDEN, DIM + 8, HIDDEN + 3, 1);
        print("grown", rows, grown, DIM * HIDDEN);
        float *mixed = numbers(rows * DIM, 0), *picked = numbers(rows * DIM, 0), *polynomials = numbers(6 * DIM * 4, 1);
        int64_t places[MOST];
        for (long i = 0; i < rows; i++) places[i] = i / 4 % 4 * 6;
        floater_mix(numbers(rows * 6, 1), polynomials, mixed, rows, 6, DIM, 1);
        print("mixed", rows, mixed, rows * DIM);
        /* one call in a line: compilers evaluate arguments in different orders */
        float *angles = rows % 3 ? numbers(rows * DIM, 1) : 0;
        float *total = numbers(DIM, 1);
        float *bias = rows % 2 ? numbers(DIM, 1) : 0;
        float *powers = numbers(rows * 6, 1);
        floater_pick_turned(powers, places, polynomials, picked, rows, 6, DIM, DIM, 1, bias, angles);
        print("picked", rows, picked, rows * DIM);
        floater_unpick_turned(powers, places, polynomials, picked, rows, 6, DIM, DIM, 1, total, angles);
        print("total", rows, total, DIM);
        print("unpicked", rows, polynomials, 6 * DIM * 4);
    }
    return 0;
}
