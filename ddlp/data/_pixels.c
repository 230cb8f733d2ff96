/* The hot pixels: a part of a JPEG file, or of an array, resampled into a batch. No Python object is touched while it
 * works, so the GIL is free.
 *
 * The bytes are those of Pillow: `Image.resize(size, BILINEAR)` of the cropped image (Resample.c of Pillow 13.0.0), on
 * what its own libjpeg decodes. That arithmetic is: triangle filter weights in double, divided by their sum, rounded to
 * 22 fractional bits; two passes over uint8, each summing weight * pixel in 32-bit integers and rounding once. Integer
 * sums may be taken in any order, so each pass is laid out for the vector units: along the rows for the vertical pass,
 * and across 16 rows at a time, transposed, for the horizontal one.
 *
 * libjpeg is not linked but loaded from the file that Pillow uses, so that there is one decoder and not two.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif

#define BITS 22
#define HALF (1 << (BITS - 1))
#define LANES 16 /* rows that the horizontal pass works on at once */
#define CHANNELS 3

enum { OK = 0, NO_MEMORY = -1, NOT_FOR_US = -2 };

typedef uint8_t u8;

/* --- memory: scratch that each thread keeps, since fresh pages cost more than the work ---------------------------- */

enum { DECODED, FIRST_PASS, SECOND_PASS, BLOCK_IN, BLOCK_OUT, WEIGHTS_X, WEIGHTS_Y, SCRATCHES };
static _Thread_local struct { void *at; size_t size; } scratch[SCRATCHES];

static void *
room(int which, size_t size) {
    if (scratch[which].size < size) {
        free(scratch[which].at);
        size += size / 4 + 64;
        scratch[which].at = aligned_alloc(64, (size + 63) / 64 * 64);
        scratch[which].size = scratch[which].at ? size : 0;
    }
    return scratch[which].at;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* For each output of one axis: it is the sum of `count[i]` inputs from `first[i]` on, times `weight[i * taps ...]`. */
typedef struct {
    int taps;
    int32_t *first, *count, *weight;
} Axis;

static int
axis_weights(Axis *axis, int which, int in, int out) {
    double scale = (double)in / out, stretch = scale < 1.0 ? 1.0 : scale, inverse = 1.0 / stretch;
    int taps = (int)ceil(stretch) * 2 + 1;
    double *row;
    if ((size_t)out > (SIZE_MAX / 16) / ((size_t)taps + 2)) {
        return NO_MEMORY;
    }
    axis->taps = taps;
    axis->first = room(which, sizeof(int32_t) * (size_t)out * (taps + 2) + sizeof(double) * taps);
    if (!axis->first) {
        return NO_MEMORY;
    }
    row = (double *)axis->first;
    axis->first = (int32_t *)(row + taps);
    axis->count = axis->first + out;
    axis->weight = axis->count + out;
    for (int i = 0; i < out; i++) {
        double centre = (i + 0.5) * scale, sum = 0.0;
        int lo = (int)(centre - stretch + 0.5), hi = (int)(centre + stretch + 0.5);
        lo = lo < 0 ? 0 : lo;
        hi = hi > in ? in : hi;
        for (int x = 0; x < hi - lo; x++) {
            double distance = fabs((x + lo - centre + 0.5) * inverse);
            row[x] = distance < 1.0 ? 1.0 - distance : 0.0;
            sum += row[x];
        }
        for (int x = 0; x < hi - lo; x++) {
            double weight = sum != 0.0 ? row[x] / sum : row[x];
            axis->weight[(size_t)i * taps + x] = (int32_t)(0.5 + weight * (1 << BITS));
        }
        axis->first[i] = lo;
        axis->count[i] = hi - lo;
    }
    return OK;
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

/* One output row: the weighted sum of `count` rows, `bytes` long. */
VECTORISED static void
blend_rows(u8 *restrict out, const u8 *in, ptrdiff_t stride, const int32_t *weight, int count, int bytes) {
    int x = 0;
    for (; x + 64 <= bytes; x += 64) {
        int32_t sum[64];
        for (int j = 0; j < 64; j++) {
            sum[j] = HALF;
        }
        for (int t = 0; t < count; t++) {
            const u8 *restrict row = in + t * stride + x;
            int32_t w = weight[t];
            for (int j = 0; j < 64; j++) {
                sum[j] += row[j] * w;
            }
        }
        for (int j = 0; j < 64; j++) {
            out[x + j] = (u8)(sum[j] >> BITS);
        }
    }
    for (; x < bytes; x++) {
        int32_t sum = HALF;
        for (int t = 0; t < count; t++) {
            sum += in[t * stride + x] * weight[t];
        }
        out[x] = (u8)(sum >> BITS);
    }
}

typedef u8 Vec __attribute__((vector_size(16)));
typedef int8_t Pick __attribute__((vector_size(16)));

#define LOW(a, b) __builtin_shuffle(a, b, (Pick){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23})
#define HIGH(a, b) __builtin_shuffle(a, b, (Pick){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31})

/* 16 x 16 bytes, rows to columns: four rounds of interleaving row i with row i + 8. */
static inline void
transpose_16(const u8 *in, ptrdiff_t in_stride, u8 *out, ptrdiff_t out_stride) {
    Vec a[16], b[16];
    for (int i = 0; i < 16; i++) {
        memcpy(&a[i], in + i * in_stride, 16);
    }
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < 8; i++) {
            b[2 * i] = LOW(a[i], a[i + 8]);
            b[2 * i + 1] = HIGH(a[i], a[i + 8]);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 16; i++) {
        memcpy(out + i * out_stride, &a[i], 16);
    }
}

/* 16 rows at once: in[input byte][row] -> out[output byte][row]. */
VECTORISED static void
blend_columns(u8 *restrict out, const u8 *restrict in, const Axis *axis, int lo, int hi, int origin) {
    for (int i = lo; i < hi; i++) {
        const int32_t *weight = axis->weight + (size_t)i * axis->taps;
        const u8 *from = in + (ptrdiff_t)(axis->first[i] - origin) * CHANNELS * LANES;
        int count = axis->count[i];
        int32_t sum[CHANNELS * LANES];
        for (int j = 0; j < CHANNELS * LANES; j++) {
            sum[j] = HALF;
        }
        for (int t = 0; t < count; t++) {
            int32_t w = weight[t];
            for (int j = 0; j < CHANNELS * LANES; j++) {
                sum[j] += from[t * CHANNELS * LANES + j] * w;
            }
        }
        for (int j = 0; j < CHANNELS * LANES; j++) {
            *out++ = (u8)(sum[j] >> BITS);
        }
    }
}

static int round_up(int n) { return (n + 15) / 16 * 16; }

/* Rows of interleaved pixels, columns `origin` on -> their outputs lo..hi. `in` is readable 15 bytes past each row. */
static int
resample_columns(u8 *out, ptrdiff_t out_stride, const u8 *in, ptrdiff_t stride, int rows, int columns, int origin,
                 const Axis *axis, int lo, int hi) {
    int in_bytes = columns * CHANNELS, out_bytes = (hi - lo) * CHANNELS;
    u8 *block_in = room(BLOCK_IN, (size_t)round_up(in_bytes) * LANES);
    u8 *block_out = room(BLOCK_OUT, (size_t)round_up(out_bytes) * LANES);
    u8 tail[LANES * LANES];
    if (!block_in || !block_out) {
        return NO_MEMORY;
    }
    for (int y = 0; y < rows; y += LANES) {
        int some = rows - y < LANES ? rows - y : LANES;
        for (int x = 0; x < in_bytes; x += LANES) {
            const u8 *from = in + y * stride + x;
            ptrdiff_t step = stride;
            if (some < LANES || x + LANES > in_bytes) { /* an edge: do not read beyond it */
                int width = in_bytes - x < LANES ? in_bytes - x : LANES;
                for (int i = 0; i < some; i++) {
                    memcpy(tail + i * LANES, from + i * stride, width);
                }
                from = tail;
                step = LANES;
            }
            transpose_16(from, step, block_in + (ptrdiff_t)x * LANES, LANES);
        }
        blend_columns(block_out, block_in, axis, lo, hi, origin);
        for (int x = 0; x < out_bytes; x += LANES) {
            u8 *to = out + y * out_stride + x;
            if (some == LANES && x + LANES <= out_stride) {
                transpose_16(block_out + (ptrdiff_t)x * LANES, LANES, to, out_stride);
            } else {
                int width = out_bytes - x < LANES ? out_bytes - x : LANES;
                transpose_16(block_out + (ptrdiff_t)x * LANES, LANES, tail, LANES);
                for (int i = 0; i < some; i++) {
                    memcpy(to + i * out_stride, tail + i * LANES, width);
                }
            }
        }
    }
    return OK;
}

/* --- what is wanted ----------------------------------------------------------------------------------------------- */

/* Resample `width` x `height` pixels to `out_width` x `out_height`, and of that the window left..right, top..bottom. */
typedef struct {
    int width, height, out_width, out_height, left, top, right, bottom, mirror, vertical_first;
    Axis x, y;
    int x0, x1, y0, y1; /* the source pixels that the window depends on */
} Task;

static int
plan(Task *task) {
    task->x0 = task->left;
    task->x1 = task->right;
    task->y0 = task->top;
    task->y1 = task->bottom;
    if (task->width != task->out_width) {
        if (axis_weights(&task->x, WEIGHTS_X, task->width, task->out_width) != OK) {
            return NO_MEMORY;
        }
        task->x0 = task->x.first[task->left];
        task->x1 = task->x.first[task->right - 1] + task->x.count[task->right - 1];
    }
    if (task->height != task->out_height) {
        if (axis_weights(&task->y, WEIGHTS_Y, task->height, task->out_height) != OK) {
            return NO_MEMORY;
        }
        task->y0 = task->y.first[task->top];
        task->y1 = task->y.first[task->bottom - 1] + task->y.count[task->bottom - 1];
    }
    /* Pillow 13 takes the vertical pass first where that spares the horizontal one much; it changes the rounding. */
    int fewer_rows = task->height - task->out_height, fewer_columns = task->width - task->out_width;
    task->vertical_first = task->vertical_first && fewer_rows > 0 && fewer_rows > 2 * fewer_columns;
    return OK;
}

typedef struct { const u8 *at; ptrdiff_t stride; } Rows;

/* Columns x0..x1 -> left..right of `rows` rows. */
static int
horizontal(const Task *task, Rows *in, int rows, int which) {
    if (task->width == task->out_width) {
        return OK;
    }
    ptrdiff_t stride = round_up((task->right - task->left) * CHANNELS);
    u8 *out = room(which, (size_t)stride * rows);
    if (!out) {
        return NO_MEMORY;
    }
    int status = resample_columns(out, stride, in->at, in->stride, rows, task->x1 - task->x0, task->x0, &task->x,
                                  task->left, task->right);
    *in = (Rows){out, stride};
    return status;
}

/* Rows y0..y1 -> top..bottom, each `columns` pixels wide. */
static int
vertical(const Task *task, Rows *in, int columns, int which) {
    if (task->height == task->out_height) {
        return OK;
    }
    ptrdiff_t stride = round_up(columns * CHANNELS);
    u8 *out = room(which, (size_t)stride * (task->bottom - task->top));
    if (!out) {
        return NO_MEMORY;
    }
    for (int y = task->top; y < task->bottom; y++) {
        blend_rows(out + (y - task->top) * stride, in->at + (task->y.first[y] - task->y0) * in->stride, in->stride,
                   task->y.weight + (size_t)y * task->y.taps, task->y.count[y], columns * CHANNELS);
    }
    *in = (Rows){out, stride};
    return OK;
}

/* `source` points at pixel (x0, y0); it becomes the window. */
static int
resample(const Task *task, Rows *source) {
    if (task->vertical_first) {
        return vertical(task, source, task->x1 - task->x0, FIRST_PASS) ||
               horizontal(task, source, task->bottom - task->top, SECOND_PASS);
    }
    return horizontal(task, source, task->y1 - task->y0, FIRST_PASS) ||
           vertical(task, source, task->right - task->left, SECOND_PASS);
}

/* Interleaved pixels -> planes, mirrored or not, each value looked up in its channel's table (NULL: as it is). */
static void
emit(const Task *task, Rows in, const float *table, void *out) {
    int width = task->right - task->left, height = task->bottom - task->top;
    int first = task->mirror ? width - 1 : 0, step = task->mirror ? -1 : 1;
    for (int y = 0; y < height; y++) {
        const u8 *row = in.at + y * in.stride + (ptrdiff_t)first * CHANNELS;
        for (int c = 0; c < CHANNELS; c++) {
            size_t at = ((size_t)c * height + y) * width;
            if (table) {
                const float *values = table + 256 * c;
                float *restrict to = (float *)out + at;
                for (int x = 0; x < width; x++) {
                    to[x] = values[row[(ptrdiff_t)x * step * CHANNELS + c]];
                }
            } else {
                u8 *restrict to = (u8 *)out + at;
                for (int x = 0; x < width; x++) {
                    to[x] = row[(ptrdiff_t)x * step * CHANNELS + c];
                }
            }
        }
    }
}

/* --- JPEG --------------------------------------------------------------------------------------------------------- */

#if defined(__has_include)
#if __has_include(<jpeglib.h>) && __has_include(<dlfcn.h>)
#define WITH_JPEG 1
#endif
#endif

#ifdef WITH_JPEG
#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#define MARGIN 16 /* a chroma sample at an edge is interpolated from its neighbours; none is further away than this */

static struct {
    struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
    void (*create)(j_decompress_ptr, int, size_t);
    void (*mem_src)(j_decompress_ptr, const unsigned char *, unsigned long);
    int (*read_header)(j_decompress_ptr, boolean);
    boolean (*start)(j_decompress_ptr);
    void (*crop)(j_decompress_ptr, JDIMENSION *, JDIMENSION *);
    JDIMENSION (*skip)(j_decompress_ptr, JDIMENSION);
    JDIMENSION (*read)(j_decompress_ptr, JSAMPARRAY, JDIMENSION);
    void (*destroy)(j_decompress_ptr);
} jpeg;

static int
find_jpeg(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return 0;
    }
#define FIND(field, name) (*(void **)&jpeg.field = dlsym(library, name)) != NULL
    return FIND(std_error, "jpeg_std_error") && FIND(create, "jpeg_CreateDecompress") &&
           FIND(mem_src, "jpeg_mem_src") && FIND(read_header, "jpeg_read_header") &&
           FIND(start, "jpeg_start_decompress") && FIND(crop, "jpeg_crop_scanline") &&
           FIND(skip, "jpeg_skip_scanlines") && FIND(read, "jpeg_read_scanlines") &&
           FIND(destroy, "jpeg_destroy_decompress");
#undef FIND
}

typedef struct { struct jpeg_error_mgr base; jmp_buf back; } Errors;

static void
on_error(j_common_ptr common) {
    longjmp(((Errors *)common->err)->back, 1);
}

static void
on_message(j_common_ptr common, int level) {
    if (level < 0) { /* a warning: Pillow decides what becomes of a damaged file */
        on_error(common);
    }
}

/* Decode columns left.. and rows top.. of the image, and a few more; `out` then points at pixel (left, top). Anything
 * unusual is NOT_FOR_US. */
static int
decode_part(const u8 *data, size_t nbytes, int left, int top, int width, int height, Rows *out) {
    struct jpeg_decompress_struct info;
    Errors errors;
    volatile int status = NOT_FOR_US;
    info.err = jpeg.std_error(&errors.base);
    errors.base.error_exit = on_error;
    errors.base.emit_message = on_message;
    if (setjmp(errors.back)) {
        jpeg.destroy(&info);
        return status;
    }
    memset((char *)&info + sizeof info.err, 0, sizeof info - sizeof info.err);
    jpeg.create(&info, JPEG_LIB_VERSION, sizeof info);
    jpeg.mem_src(&info, data, nbytes);
    jpeg.read_header(&info, TRUE);
    if (info.data_precision != 8 || (int)info.image_width < left + width || (int)info.image_height < top + height ||
        (info.jpeg_color_space != JCS_YCbCr && info.jpeg_color_space != JCS_RGB &&
         info.jpeg_color_space != JCS_GRAYSCALE)) {
        jpeg.destroy(&info);
        return NOT_FOR_US;
    }
    info.out_color_space = JCS_RGB;
    jpeg.start(&info);
    JDIMENSION from = left > MARGIN ? left - MARGIN : 0, to = left + width + MARGIN;
    JDIMENSION columns = (to > info.output_width ? info.output_width : to) - from;
    if (columns < info.output_width) {
        jpeg.crop(&info, &from, &columns);
    }
    JDIMENSION above = top > MARGIN ? top - MARGIN : 0;
    if (above) {
        jpeg.skip(&info, above);
    }
    int rows = top + height - (int)above;
    ptrdiff_t stride = round_up((int)columns * CHANNELS);
    u8 *pixels = room(DECODED, (size_t)stride * rows);
    if (!pixels) {
        status = NO_MEMORY;
        longjmp(errors.back, 1);
    }
    for (int y = 0; y < rows;) {
        JSAMPROW line = pixels + y * stride;
        y += (int)jpeg.read(&info, &line, 1);
    }
    jpeg.destroy(&info);
    *out = (Rows){pixels + (top - (int)above) * stride + (left - (int)from) * CHANNELS, stride};
    return OK;
}
#endif

/* The size in a JPEG file's header; 0 for files that are left to Pillow: other forms, no end marker. */
static int
jpeg_size(const u8 *data, size_t nbytes, int *width, int *height) {
    size_t at = 2;
    if (nbytes < 4 || data[0] != 0xFF || data[1] != 0xD8 || data[nbytes - 2] != 0xFF || data[nbytes - 1] != 0xD9) {
        return 0;
    }
    while (at + 9 < nbytes && data[at] == 0xFF) {
        u8 marker = data[at + 1];
        if (marker == 0xFF) { /* padding */
            at++;
            continue;
        }
        if (marker == 0xC0 || marker == 0xC1 || marker == 0xC2) {
            *height = data[at + 5] << 8 | data[at + 6];
            *width = data[at + 7] << 8 | data[at + 8];
            return data[at + 4] == 8 && (data[at + 9] == 1 || data[at + 9] == 3) && *width && *height;
        }
        if (marker == 0xDA || marker == 0xD9 || (marker >= 0xC3 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8)) {
            return 0;
        }
        at += 2 + (size_t)(data[at + 2] << 8 | data[at + 3]);
    }
    return 0;
}

/* --- Python ------------------------------------------------------------------------------------------------------- */

/* Parse (box, size, window, mirror, vertical_first) and check that they make sense together. */
static int
read_task(PyObject *args, Task *task, Py_buffer *source, Py_buffer *out, Py_buffer *table, int *left, int *top) {
    PyObject *table_arg;
    memset(task, 0, sizeof *task);
    if (!PyArg_ParseTuple(args, "y*(iiii)(ii)(iiii)ppOw*", source, left, top, &task->width, &task->height,
                          &task->out_width, &task->out_height, &task->left, &task->top, &task->right, &task->bottom,
                          &task->mirror, &task->vertical_first, &table_arg, out)) {
        return -1;
    }
    table->buf = NULL;
    if (table_arg != Py_None && PyObject_GetBuffer(table_arg, table, PyBUF_C_CONTIGUOUS) < 0) {
        goto fail;
    }
    int64_t area = (int64_t)(task->right - task->left) * (task->bottom - task->top);
    if (*left < 0 || *top < 0 || task->width < 1 || task->height < 1 || task->out_width < 1 || task->out_height < 1 ||
        task->width > 1 << 16 || task->height > 1 << 16 || task->out_width > 1 << 16 || task->out_height > 1 << 16 ||
        task->left < 0 || task->top < 0 || task->left >= task->right || task->top >= task->bottom ||
        task->right > task->out_width || task->bottom > task->out_height ||
        (table->buf && table->len != CHANNELS * 256 * (Py_ssize_t)sizeof(float)) ||
        out->len != area * CHANNELS * (Py_ssize_t)(table->buf ? sizeof(float) : 1)) {
        PyErr_SetString(PyExc_ValueError, "box, size, window, table and out do not fit each other");
        goto fail;
    }
    return 0;
fail:
    if (table->buf) {
        PyBuffer_Release(table);
    }
    PyBuffer_Release(out);
    PyBuffer_Release(source);
    return -1;
}

static PyObject *
finish(int status, Py_buffer *source, Py_buffer *out, Py_buffer *table) {
    if (table->buf) {
        PyBuffer_Release(table);
    }
    PyBuffer_Release(out);
    PyBuffer_Release(source);
    if (status == NO_MEMORY) {
        return PyErr_NoMemory();
    }
    return PyBool_FromLong(status == OK);
}

static PyObject *
from_jpeg(PyObject *module, PyObject *args) {
    Task task;
    Py_buffer source, out, table;
    int left, top, status = NOT_FOR_US;
    (void)module;
    if (read_task(args, &task, &source, &out, &table, &left, &top) < 0) {
        return NULL;
    }
#ifdef WITH_JPEG
    if (jpeg.destroy) {
        Py_BEGIN_ALLOW_THREADS
        Rows rows;
        status = plan(&task);
        if (status == OK) {
            status = decode_part(source.buf, (size_t)source.len, left + task.x0, top + task.y0, task.x1 - task.x0,
                                 task.y1 - task.y0, &rows);
        }
        if (status == OK && (status = resample(&task, &rows)) == OK) {
            emit(&task, rows, table.buf, out.buf);
        }
        Py_END_ALLOW_THREADS
    }
#endif
    return finish(status, &source, &out, &table);
}

static PyObject *
from_pixels(PyObject *module, PyObject *args) {
    Task task;
    Py_buffer source, out, table;
    int left, top, columns, status;
    PyObject *rest;
    (void)module;
    if (PyTuple_GET_SIZE(args) != 9) {
        PyErr_SetString(PyExc_TypeError, "from_pixels takes 9 arguments");
        return NULL;
    }
    columns = (int)PyLong_AsLong(PyTuple_GET_ITEM(args, 8));
    if (columns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    rest = PyTuple_GetSlice(args, 0, 8);
    if (!rest) {
        return NULL;
    }
    status = read_task(rest, &task, &source, &out, &table, &left, &top);
    Py_DECREF(rest);
    if (status < 0) {
        return NULL;
    }
    ptrdiff_t stride = (ptrdiff_t)columns * CHANNELS;
    if (columns < left + task.width || source.len < stride * (top + task.height)) {
        finish(OK, &source, &out, &table);
        PyErr_SetString(PyExc_ValueError, "the box reaches beyond the pixels");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = plan(&task);
    if (status == OK) {
        Rows rows = {(const u8 *)source.buf + (top + task.y0) * stride + (left + task.x0) * CHANNELS, stride};
        if ((status = resample(&task, &rows)) == OK) {
            emit(&task, rows, table.buf, out.buf);
        }
    }
    Py_END_ALLOW_THREADS
    return finish(status, &source, &out, &table);
}

static PyObject *
size_of_jpeg(PyObject *module, PyObject *arg) {
    Py_buffer data;
    int width = 0, height = 0, known;
    (void)module;
    if (PyObject_GetBuffer(arg, &data, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    known = jpeg_size(data.buf, (size_t)data.len, &width, &height);
    PyBuffer_Release(&data);
    if (!known) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(ii)", width, height);
}

static PyObject *
use_libjpeg(PyObject *module, PyObject *arg) {
    (void)module;
    const char *path = PyUnicode_AsUTF8(arg);
    if (!path) {
        return NULL;
    }
#ifdef WITH_JPEG
    if (find_jpeg(path)) {
        Py_RETURN_TRUE;
    }
    memset(&jpeg, 0, sizeof jpeg);
#endif
    Py_RETURN_FALSE;
}

static PyMethodDef methods[] = {
    {"from_jpeg", from_jpeg, METH_VARARGS,
     "from_jpeg(data, box, size, window, mirror, vertical_first, table, out) -> whether it could be done"},
    {"from_pixels", from_pixels, METH_VARARGS,
     "from_pixels(pixels, box, size, window, mirror, vertical_first, table, out, columns) -> True"},
    {"size_of_jpeg", size_of_jpeg, METH_O, "size_of_jpeg(data) -> (width, height), or None for what Pillow must do"},
    {"use_libjpeg", use_libjpeg, METH_O, "use_libjpeg(path) -> whether JPEG files can be decoded with it"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_pixels", "The hot pixels, in C; see ddlp.data.pixels.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__pixels(void) {
    return PyModule_Create(&definition);
}
