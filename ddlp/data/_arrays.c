/* The hot loops over arrays: which samples a batch holds, their random numbers, and the pixels of their images.
 *
 * Each gives bit for bit what ddlp.data.sampling and ddlp.data.windows do in numpy: integers that wrap, single
 * correctly rounded floating-point operations, and moves. No Python object is touched while they run, so the GIL is
 * free. What a caller hands over is checked once, before a loop begins; no number in it can lead outside a buffer.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif
#define INLINED static inline __attribute__((always_inline))

typedef uint8_t u8;
typedef uint64_t u64;

/* --- ids and draws: see ddlp/data/sampling.py, whose names these are ---------------------------------------------- */

#define GAMMA 0x9E3779B97F4A7C15u
#define MIX_1 0xBF58476D1CE4E5B9u
#define MIX_2 0x94D049BB133111EBu
#define ROUNDS 8

static u64
finalise(u64 z) {
    z = (z ^ (z >> 30)) * MIX_1;
    z = (z ^ (z >> 27)) * MIX_2;
    return z ^ (z >> 31);
}

static u64
mixed(u64 x, u64 key) {
    return finalise(finalise(x * GAMMA + key) ^ key);
}

static u64
below(u64 limit, u64 x, u64 key) {
    return (mixed(x, key) >> 32) * limit >> 32;
}

static u64
feistel(u64 x, u64 a, u64 b, const u64 *keys) {
    u64 left = x / b, right = x % b;
    for (int turn = 0; turn < ROUNDS; turn += 2) {
        left += below(a, right, keys[turn]);
        left -= left >= a ? a : 0;
        right += below(b, left, keys[turn + 1]);
        right -= right >= b ? b : 0;
    }
    return left * b + right;
}

static PyObject *
permute(PyObject *module, PyObject *args) {
    Py_buffer positions, keys;
    unsigned long long n, a, b;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*KKKy*", &positions, &n, &a, &b, &keys)) {
        return NULL;
    }
    int fits = positions.len % 8 == 0 && keys.len == ROUNDS * 8 && a && b && a <= UINT32_MAX && b <= UINT32_MAX &&
               a * b >= n;
    int inside = 1;
    u64 *at = positions.buf;
    for (Py_ssize_t i = 0; i < positions.len / 8; i++) {
        inside &= at[i] < n; /* the walk of another might never come back */
    }
    if (fits && inside) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < positions.len / 8; i++) {
            do {
                at[i] = feistel(at[i], a, b, keys.buf);
            } while (at[i] >= n);
        }
        Py_END_ALLOW_THREADS
    } else if (fits) {
        PyErr_Format(PyExc_IndexError, "positions must be in 0..%llu", n - 1);
    } else {
        PyErr_SetString(PyExc_ValueError, "positions, n, a, b and keys do not fit each other");
    }
    PyBuffer_Release(&keys);
    PyBuffer_Release(&positions);
    return fits && inside ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
draws(PyObject *module, PyObject *args) {
    Py_buffer ids, out;
    unsigned long long key;
    Py_ssize_t count;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*Knw*", &ids, &key, &count, &out)) {
        return NULL;
    }
    Py_ssize_t samples = ids.len / 8;
    int fits = ids.len % 8 == 0 && count >= 0 && out.len % 8 == 0 &&
               (samples ? out.len / 8 / samples == count && out.len / 8 % samples == 0 : out.len == 0);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        const u64 *id = ids.buf;
        double *to = out.buf;
        for (Py_ssize_t i = 0; i < samples; i++) {
            u64 stream = mixed(id[i], key);
            for (Py_ssize_t j = 1; j <= count; j++) {
                *to++ = (double)(finalise(stream + (u64)j * GAMMA) >> 11) * 0x1p-53;
            }
        }
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "ids, count and out do not fit each other");
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&ids);
    return fits ? Py_NewRef(Py_None) : NULL;
}

/* --- pixels: see ddlp/data/windows.py ----------------------------------------------------------------------------- */

/* Images (count, height, width, channels) of `item` bytes each number -> parts (channels, out_height, out_width).
 * With `scale`, the means and then the deviations of the channels, bytes become (x / 255 - mean) / deviation. */
typedef struct {
    Py_ssize_t count, height, width, channels, item, out_height, out_width;
    const u8 *images;
    const float *scale;
    u8 *planes; /* a part before it is scaled */
} Task;

/* The part of one image: its pixels from (top, left) on, those outside of the bounds being zero. */
typedef struct { int64_t top, left, mirrored, row_lo, row_hi, column_lo, column_hi; } Window;

enum { WINDOW_NUMBERS = 7, LANES = 16, PREFETCHED = 4096, LINE = 64 };

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static Window
window_of(const Task *task, const int32_t *numbers, Py_ssize_t samples, Py_ssize_t i) {
    return (Window){numbers[i],
                    numbers[samples + i],
                    numbers[2 * samples + i],
                    larger(numbers[3 * samples + i], 0),
                    smaller(numbers[4 * samples + i], task->height),
                    larger(numbers[5 * samples + i], 0),
                    smaller(numbers[6 * samples + i], task->width)};
}

/* Which of `extent` positions lie inside: from `start` on, `count` of them. */
typedef struct { Py_ssize_t start, count; } Span;

static Span
inside(int64_t first, int64_t lo, int64_t hi, Py_ssize_t extent) {
    int64_t start = smaller(larger(lo - first, 0), extent);
    return (Span){start, larger(smaller(hi - first, extent), start) - start};
}

/* `rows` by `columns` pixels: rows of interleaved channels, `in_line` bytes apart, to planes of rows, `line` apart. */
typedef struct {
    const u8 *in;
    u8 *out;
    Py_ssize_t rows, columns, in_line, line, plane;
    int mirrored;
} Move;

#define COPY(type)                                                                                                     \
    for (Py_ssize_t x = 0; x < count; x++) {                                                                           \
        ((type *)out)[x] = ((const type *)in)[x * stride];                                                             \
    }

/* Every `stride`-th number of `item` bytes. */
static void
copy_numbers(u8 *restrict out, const u8 *restrict in, Py_ssize_t count, Py_ssize_t stride, Py_ssize_t item) {
    if (stride == 1) {
        memcpy(out, in, count * item);
        return;
    }
    switch (item) {
    case 1: COPY(uint8_t) break;
    case 2: COPY(uint16_t) break;
    case 4: COPY(uint32_t) break;
    default: COPY(uint64_t) break;
    }
}

static void
move_any(Move move, Py_ssize_t channels, Py_ssize_t item) {
    Py_ssize_t stride = move.mirrored ? -channels : channels;
    Py_ssize_t first = move.mirrored ? (move.columns - 1) * channels : 0;
    for (Py_ssize_t c = 0; c < channels; c++) {
        for (Py_ssize_t y = 0; y < move.rows; y++) {
            copy_numbers(move.out + c * move.plane + y * move.line,
                         move.in + y * move.in_line + (first + c) * item, move.columns, stride, item);
        }
    }
}

/* The same of three channels of bytes, LANES pixels at a time. The last block of a row overlaps the one before, so that
 * no remainder is left. */
INLINED void
move_blocks(Move move, int mirrored) {
    for (Py_ssize_t y = 0; y < move.rows; y++) {
        for (Py_ssize_t at = 0; at < move.columns; at += LANES) {
            at = at + LANES > move.columns ? move.columns - LANES : at;
            const u8 *restrict in = move.in + y * move.in_line + 3 * (mirrored ? move.columns - LANES - at : at);
            u8 *restrict out = move.out + y * move.line + at;
            for (int c = 0; c < 3; c++) {
                for (int x = 0; x < LANES; x++) {
                    out[c * move.plane + x] = in[3 * (mirrored ? LANES - 1 - x : x) + c];
                }
            }
        }
    }
}

VECTORISED static void
move_bytes(Move move) {
    if (move.mirrored) {
        move_blocks(move, 1);
    } else {
        move_blocks(move, 0);
    }
}

static void
cut_part(const Task *task, const u8 *image, const Window *window, u8 *out) {
    Span rows = inside(window->top, window->row_lo, window->row_hi, task->out_height);
    Span columns = inside(window->left, window->column_lo, window->column_hi, task->out_width);
    Py_ssize_t pixel = task->channels * task->item, line = task->out_width * task->item;
    Move move = {.rows = rows.count, .columns = columns.count, .in_line = task->width * pixel, .line = line,
                 .plane = line * task->out_height, .mirrored = window->mirrored != 0};
    if (rows.count < task->out_height || columns.count < task->out_width) {
        memset(out, 0, move.plane * task->channels);
    }
    if (rows.count == 0 || columns.count == 0) {
        return;
    }
    Py_ssize_t x = move.mirrored ? task->out_width - columns.start - columns.count : columns.start;
    move.in = image + (window->top + rows.start) * move.in_line + (window->left + columns.start) * pixel;
    move.out = out + rows.start * line + x * task->item;
    if (task->channels == 3 && task->item == 1 && columns.count >= LANES) {
        move_bytes(move);
    } else {
        move_any(move, task->channels, task->item);
    }
}

VECTORISED static void
scale_part(const Task *task, float *restrict out) {
    Py_ssize_t plane = task->out_height * task->out_width;
    for (Py_ssize_t c = 0; c < task->channels; c++, out += plane) {
        const u8 *restrict in = task->planes + c * plane;
        float mean = task->scale[c], deviation = task->scale[task->channels + c];
        for (Py_ssize_t x = 0; x < plane; x++) {
            out[x] = ((float)in[x] / 255.0f - mean) / deviation;
        }
    }
}

/* The images lie all over memory: have the next one come while this one is worked on. */
static void
prefetch(const u8 *image, Py_ssize_t nbytes) {
    for (Py_ssize_t at = 0; at < nbytes && at < PREFETCHED; at += LINE) {
        __builtin_prefetch(image + at);
    }
}

static void
cut_all(const Task *task, const int64_t *ids, const int32_t *numbers, Py_ssize_t samples, u8 *out) {
    Py_ssize_t image_nbytes = task->height * task->width * task->channels * task->item;
    Py_ssize_t part_nbytes = task->out_height * task->out_width * task->channels * (task->scale ? 4 : task->item);
    for (Py_ssize_t i = 0; i < samples; i++, out += part_nbytes) {
        Window window = window_of(task, numbers, samples, i);
        if (i + 1 < samples) {
            prefetch(task->images + ids[i + 1] * image_nbytes, image_nbytes);
        }
        cut_part(task, task->images + ids[i] * image_nbytes, &window, task->scale ? task->planes : out);
        if (task->scale) {
            scale_part(task, (float *)out);
        }
    }
}

/* Whether the product of the factors, none of which may be negative, is `nbytes`. */
static int
is_product(Py_ssize_t nbytes, const Py_ssize_t *factors, int count) {
    Py_ssize_t product = 1;
    int zero = 0, overflow = 0;
    for (int i = 0; i < count; i++) {
        if (factors[i] < 0) {
            return 0;
        }
        zero |= factors[i] == 0;
        overflow |= __builtin_mul_overflow(product, factors[i], &product);
    }
    return zero ? nbytes == 0 : !overflow && product == nbytes;
}

static int
fits(const Task *task, const Py_buffer *images, const Py_buffer *ids, const Py_buffer *numbers, const Py_buffer *out,
     const Py_buffer *scale) {
    Py_ssize_t samples = ids->len / 8, item = scale->buf ? (Py_ssize_t)sizeof(float) : task->item;
    Py_ssize_t in_factors[] = {task->count, task->height, task->width, task->channels, task->item};
    Py_ssize_t out_factors[] = {samples, task->channels, task->out_height, task->out_width, item};
    if (ids->len % 8 || numbers->len != samples * WINDOW_NUMBERS * 4 || !is_product(images->len, in_factors, 5) ||
        !is_product(out->len, out_factors, 5) || (scale->buf && task->item != 1) ||
        (scale->buf && scale->len != task->channels * 2 * (Py_ssize_t)sizeof(float)) ||
        (task->item != 1 && task->item != 2 && task->item != 4 && task->item != 8)) {
        PyErr_SetString(PyExc_ValueError, "images, shape, ids, windows, scale and out do not fit each other");
        return 0;
    }
    for (Py_ssize_t i = 0; i < samples; i++) {
        int64_t id = ((const int64_t *)ids->buf)[i];
        if (id < 0 || id >= task->count) {
            PyErr_Format(PyExc_IndexError, "image %lld of %zd", (long long)id, task->count);
            return 0;
        }
    }
    return 1;
}

static PyObject *
cut(PyObject *module, PyObject *args) {
    Task task;
    Py_buffer images, ids, numbers, out, scale = {.buf = NULL};
    PyObject *scale_arg, *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*(nnnnn)y*y*(nn)Ow*", &images, &task.count, &task.height, &task.width,
                          &task.channels, &task.item, &ids, &numbers, &task.out_height, &task.out_width, &scale_arg,
                          &out)) {
        return NULL;
    }
    if (scale_arg != Py_None && PyObject_GetBuffer(scale_arg, &scale, PyBUF_C_CONTIGUOUS) < 0) {
        scale.buf = NULL;
        goto done;
    }
    if (!fits(&task, &images, &ids, &numbers, &out, &scale)) {
        goto done;
    }
    task.images = images.buf;
    task.scale = scale.buf;
    task.planes = scale.buf ? malloc((size_t)(task.out_height * task.out_width * task.channels) + 1) : NULL;
    if (scale.buf && !task.planes) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    cut_all(&task, ids.buf, numbers.buf, ids.len / 8, out.buf);
    Py_END_ALLOW_THREADS
    free(task.planes);
    result = Py_NewRef(Py_None);
done:
    if (scale.buf) {
        PyBuffer_Release(&scale);
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&ids);
    PyBuffer_Release(&images);
    return result;
}

/* Set a square of each image (channels, height, width) to zero, as far as it lies inside. */
static void
clear_all(u8 *out, const int64_t *corners, Py_ssize_t samples, const Py_ssize_t *shape, Py_ssize_t side) {
    Py_ssize_t channels = shape[0], height = shape[1], width = shape[2], item = shape[3];
    for (Py_ssize_t i = 0; i < samples; i++) {
        Span rows = inside(0, corners[2 * i], corners[2 * i] + side, height);
        Span columns = inside(0, corners[2 * i + 1], corners[2 * i + 1] + side, width);
        for (Py_ssize_t c = 0; c < channels; c++, out += height * width * item) {
            for (Py_ssize_t y = rows.start; y < rows.start + rows.count; y++) {
                memset(out + (y * width + columns.start) * item, 0, columns.count * item);
            }
        }
    }
}

static PyObject *
clear(PyObject *module, PyObject *args) {
    Py_buffer out, corners;
    Py_ssize_t factors[5], side;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*(nnnn)ny*n", &out, &factors[0], &factors[1], &factors[2], &factors[3], &factors[4],
                          &corners, &side)) {
        return NULL;
    }
    int fit = is_product(out.len, factors, 5) && corners.len == factors[0] * 16 && side >= 0 && side <= INT32_MAX;
    for (Py_ssize_t i = 0; fit && i < corners.len / 8; i++) {
        int64_t corner = ((const int64_t *)corners.buf)[i];
        fit = corner >= INT32_MIN && corner <= INT32_MAX;
    }
    if (fit) {
        Py_BEGIN_ALLOW_THREADS
        clear_all(out.buf, corners.buf, factors[0], factors + 1, side);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "images, shape, corners and side do not fit each other");
    }
    PyBuffer_Release(&corners);
    PyBuffer_Release(&out);
    return fit ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    {"permute", permute, METH_VARARGS, "permute(positions, n, a, b, keys): in place"},
    {"draws", draws, METH_VARARGS, "draws(ids, key, count, out)"},
    {"cut", cut, METH_VARARGS,
     "cut(images, (count, height, width, channels, item), ids, windows, (height, width), scale, out)"},
    {"clear", clear, METH_VARARGS, "clear(images, (count, channels, height, width), item, corners, side): in place"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_arrays", "The hot loops over arrays, in C.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__arrays(void) {
    return PyModule_Create(&definition);
}
