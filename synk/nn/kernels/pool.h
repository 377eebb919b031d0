/* Pooling of images, of float or double, and its adjoint.

Windows are reduced along columns first, where pixels and results lie one after another
in memory, and then along rows. */

#include <math.h>

namespace synk_pool {

using synk_arrays::Contiguous;
using synk_arrays::Room;
using synk_arrays::check_memory;
using synk_arrays::make_room;

enum Mode { MAX, SUM, AVERAGE_INC_PAD, AVERAGE_EXC_PAD };

/* How windows lie along an axis. */
struct Axis {
    long size, window, stride, pad, count; /* count: of windows; see `pool_length` */

    Axis(long size_, long window_, long stride_, long pad_, bool ignore_border)
        : size(size_), window(window_), stride(stride_), pad(pad_) {
        const long room = size + 2 * pad - window;
        if (ignore_border) count = room < 0 ? 0 : room / stride + 1;
        else if (!size) count = 0;
        else if (stride >= window) count = (size - 1) / stride + 1;
        else count = (size - 1 < window ? 0 : (size - 1 - window + stride) / stride) + 1;
    }

    /* The first window that has its pixel `place` within the image, and their end. */
    long first(long place) const {
        return place >= pad ? 0 : (pad - place + stride - 1) / stride;
    }
    long end(long place) const {
        const long last = size - 1 + pad - place;
        const long stop = last < 0 ? 0 : last / stride + 1;
        return stop < count ? stop : count;
    }
    /* By how many pixels the sum of a window is divided. */
    long divisor(long at, Mode mode) const {
        const long low = mode == AVERAGE_EXC_PAD ? pad : 0;
        const long high = mode == AVERAGE_EXC_PAD ? pad + size : size + 2 * pad;
        const long begin = at * stride > low ? at * stride : low;
        const long stop = at * stride + window < high ? at * stride + window : high;
        return stop - begin > 1 ? stop - begin : 1;
    }
    /* Tell whether each pixel is in one window at most. */
    bool disjoint() const { return window <= stride; }
    /* How long a row of pixels is in which windows lie, with a margin. */
    long length() const {
        return disjoint() ? count * stride : (count - 1) * stride + window;
    }
};

struct Sizes {
    long planes;
    Axis rows, columns;
    Mode mode;

    long pixels() const { return rows.size * columns.size; }
    long pooled() const { return rows.count * columns.count; }
};

/* The larger of two numbers, NaN if one of them is. */
template <typename T> inline T larger(T a, T b) { return (a > b) | (a != a) ? a : b; }

template <typename T, bool OF_MAXIMUM> inline void join(T &total, T x) {
    total = OF_MAXIMUM ? larger(x, total) : total + x;
}

/* Reduce `count` windows of a row of pixels, at a stride known here if not 0. */
template <typename T, bool OF_MAXIMUM, int STRIDE>
void reduce(const T *pixels, long window, long stride, long count, T *y) {
    if (STRIDE) stride = STRIDE;
    if (STRIDE == 2 && window == 2) {
        for (long i = 0; i < count; i++) {
            T total = pixels[2 * i];
            join<T, OF_MAXIMUM>(total, pixels[2 * i + 1]);
            y[i] = total;
        }
        return;
    }
    for (long i = 0; i < count; i++) y[i] = pixels[i * stride];
    for (long j = 1; j < window; j++)
        for (long i = 0; i < count; i++)
            join<T, OF_MAXIMUM>(y[i], pixels[i * stride + j]);
}

template <typename T, bool OF_MAXIMUM>
void reduce_row(const T *pixels, long window, long stride, long count, T *y) {
    if (stride == 1) reduce<T, OF_MAXIMUM, 1>(pixels, window, stride, count, y);
    else if (stride == 2) reduce<T, OF_MAXIMUM, 2>(pixels, window, stride, count, y);
    else reduce<T, OF_MAXIMUM, 0>(pixels, window, stride, count, y);
}

template <typename T> void divide(const Sizes &s, const T *y, T *result) {
    for (long r = 0; r < s.rows.count; r++)
        for (long q = 0; q < s.columns.count; q++) {
            const long at = r * s.columns.count + q;
            result[at] = y[at] / T(s.rows.divisor(r, s.mode)
                                   * s.columns.divisor(q, s.mode));
        }
}

/* Reduce the windows along columns, into rows with a margin. */
template <typename T, bool OF_MAXIMUM>
void reduce_columns(const Sizes &s, const T *x, T *rows) {
    const long size = s.columns.size, pad = s.columns.pad, pitch = s.columns.length();
    const T nothing = OF_MAXIMUM ? T(-INFINITY) : T(0);
    const long seen = size < pitch - pad ? size : pitch - pad;
    for (long r = 0; r < s.rows.count; r++, rows += pitch) {
        for (long q = 0; q < pitch; q++) rows[q] = nothing;
        for (long i = 0; i < s.rows.window; i++) {
            const long from = r * s.rows.stride + i - s.rows.pad;
            if (from < 0 || from >= s.rows.size) continue;
            for (long q = 0; q < seen; q++)
                join<T, OF_MAXIMUM>(rows[pad + q], x[from * size + q]);
        }
    }
}

/* Compute pooled images y (planes, rows, columns). False: no memory. */
template <typename T, bool OF_MAXIMUM> bool pool(const Sizes &s, const T *x, T *y) {
    const Axis &c = s.columns;
    Room<T> rows(s.rows.count * c.length() + 1);
    if (!rows.at) return false;
    for (long i = 0; i < s.planes; i++, x += s.pixels(), y += s.pooled()) {
        reduce_columns<T, OF_MAXIMUM>(s, x, rows.at);
        if (c.disjoint()) /* rows follow each other as their windows do */
            reduce_row<T, OF_MAXIMUM>(rows.at, c.window, c.stride, s.pooled(), y);
        else
            for (long r = 0; r < s.rows.count; r++)
                reduce_row<T, OF_MAXIMUM>(rows.at + r * c.length(), c.window, c.stride,
                                          c.count, y + r * c.count);
        if (s.mode >= AVERAGE_INC_PAD) divide(s, y, y);
    }
    return true;
}

/* Add numbers to the pixels of a row that are equal to another, or to all. */
template <typename T, bool OF_MAXIMUM, int STRIDE>
void add(const T *x, const T *y, const T *g, long stride, long count, T *result) {
    if (STRIDE) stride = STRIDE;
    for (long i = 0; i < count; i++)
        result[i * stride] += !OF_MAXIMUM || x[i * stride] == y[i] ? g[i] : T(0);
}

/* Spread numbers over the columns of windows: each is repeated. */
template <typename T>
void repeat(const T *from, long count, long window, long stride, T *to) {
    if (window == 2 && stride == 2)
        for (long i = 0; i < count; i++) to[2 * i] = to[2 * i + 1] = from[i];
    else
        for (long i = 0; i < count; i++)
            for (long j = 0; j < stride; j++)
                to[i * stride + j] = j < window ? from[i] : T(0);
}

/* Compute the adjoint for a plane, where each pixel is in one window at most. */
template <typename T, bool OF_MAXIMUM>
void spread_apart(const Sizes &s, const T *x, const T *y, const T *g, T *maxima,
                  T *numbers, T *result) {
    const Axis &c = s.columns;
    const long pitch = c.length();
    const long seen = c.size < pitch - c.pad ? c.size : pitch - c.pad;
    if (OF_MAXIMUM) repeat(y, s.pooled(), c.window, c.stride, maxima);
    repeat(g, s.pooled(), c.window, c.stride, numbers);
    for (long r = 0; r < s.rows.size; r++, x += c.size, result += c.size) {
        const long at = (r + s.rows.pad) / s.rows.stride;
        const long place = (r + s.rows.pad) % s.rows.stride;
        const bool none = at >= s.rows.count || place >= s.rows.window || seen < 0;
        const long last = none ? 0 : seen;
        const T *number = numbers + at * pitch + c.pad;
        const T *maximum = maxima + at * pitch + c.pad;
        for (long q = 0; q < last; q++)
            result[q] = !OF_MAXIMUM || x[q] == maximum[q] ? number[q] : T(0);
        for (long q = last; q < c.size; q++) result[q] = 0;
    }
}

/* Compute the adjoint for a plane. */
template <typename T, bool OF_MAXIMUM>
void spread_over(const Sizes &s, const T *x, const T *y, const T *g, T *result) {
    const Axis &c = s.columns;
    for (long i = 0; i < s.pixels(); i++) result[i] = 0;
    for (long r = 0; r < s.rows.count; r++, y += c.count, g += c.count)
        for (long i = 0; i < s.rows.window; i++) {
            const long row = r * s.rows.stride + i - s.rows.pad;
            if (row < 0 || row >= s.rows.size) continue;
            for (long j = 0; j < c.window; j++) {
                const long first = c.first(j), count = c.end(j) - first;
                const long at = row * c.size + first * c.stride + j - c.pad;
                if (c.stride == 1)
                    add<T, OF_MAXIMUM, 1>(x + at, y + first, g + first, 1, count,
                                          result + at);
                else if (c.stride == 2)
                    add<T, OF_MAXIMUM, 2>(x + at, y + first, g + first, 2, count,
                                          result + at);
                else
                    add<T, OF_MAXIMUM, 0>(x + at, y + first, g + first, c.stride, count,
                                          result + at);
            }
        }
}

/* Compute the adjoint g -> (planes, rows, columns). False: no memory. */
template <typename T, bool OF_MAXIMUM>
bool spread(const Sizes &s, const T *x, const T *y, const T *g, T *result) {
    const bool apart = s.rows.disjoint() && s.columns.disjoint();
    const long room = apart ? s.rows.count * s.columns.length() : 0;
    Room<T> maxima(room), numbers(room), divided(s.pooled());
    if (!maxima.at || !numbers.at || !divided.at) return false;
    for (long i = 0; i < s.planes; i++) {
        const T *from = g;
        if (s.mode >= AVERAGE_INC_PAD) {
            divide(s, g, divided.at);
            from = divided.at;
        }
        if (apart)
            spread_apart<T, OF_MAXIMUM>(s, x, y, from, maxima.at, numbers.at, result);
        else spread_over<T, OF_MAXIMUM>(s, x, y, from, result);
        x += s.pixels(), result += s.pixels(), y += s.pooled(), g += s.pooled();
    }
    return true;
}

/* -- numpy's arrays */

/* Of an Op; see `PoolOp`. */
struct Parameters {
    npy_intp window_rows, window_columns, stride_rows, stride_columns, pad_rows,
        pad_columns, ignore_border, mode;
};

static Sizes sizes_of(const Parameters &p, PyArrayObject *x) {
    const int last = PyArray_NDIM(x) - 1;
    long planes = 1;
    for (int i = 0; i < last - 1; i++) planes *= PyArray_DIM(x, i);
    const Axis rows(PyArray_DIM(x, last - 1), p.window_rows, p.stride_rows, p.pad_rows,
                    p.ignore_border);
    const Axis columns(PyArray_DIM(x, last), p.window_columns, p.stride_columns,
                       p.pad_columns, p.ignore_border);
    const Sizes sizes = {planes, rows, columns, static_cast<Mode>(p.mode)};
    return sizes;
}

/* Set the shape of pooled images. */
static void pooled_shape(const Sizes &s, PyArrayObject *x, npy_intp *shape) {
    const int last = PyArray_NDIM(x) - 1;
    for (int i = 0; i < last - 1; i++) shape[i] = PyArray_DIM(x, i);
    shape[last - 1] = s.rows.count, shape[last] = s.columns.count;
}

template <typename T>
bool compute_pool(const Parameters &p, PyArrayObject *x, PyArrayObject **y) {
    const Sizes s = sizes_of(p, x);
    npy_intp shape[NPY_MAXDIMS];
    pooled_shape(s, x, shape);
    Contiguous images(x);
    if (!images.array || !make_room(y, PyArray_NDIM(x), shape, PyArray_TYPE(x)))
        return false;
    if (!PyArray_SIZE(*y)) return true;
    T *pooled = static_cast<T *>(PyArray_DATA(*y));
    return check_memory(p.mode == MAX ? pool<T, true>(s, images.of<T>(), pooled)
                                      : pool<T, false>(s, images.of<T>(), pooled));
}

template <typename T>
bool compute_grad(const Parameters &p, PyArrayObject *x, PyArrayObject *y,
                  PyArrayObject *g, PyArrayObject **result) {
    const Sizes s = sizes_of(p, x);
    npy_intp shape[NPY_MAXDIMS];
    pooled_shape(s, x, shape);
    if (!PyArray_CompareLists(PyArray_DIMS(y), shape, PyArray_NDIM(x))
        || !PyArray_CompareLists(PyArray_DIMS(g), shape, PyArray_NDIM(x))) {
        PyErr_SetString(PyExc_ValueError,
                        "pooled images, or the gradient by them, have another shape"
                        " than images have when they are pooled");
        return false;
    }
    Contiguous images(x), pooled(y), numbers(g);
    if (!images.array || !pooled.array || !numbers.array
        || !make_room(result, PyArray_NDIM(x), PyArray_DIMS(x), PyArray_TYPE(g)))
        return false;
    T *to = static_cast<T *>(PyArray_DATA(*result));
    const T *of_x = images.of<T>(), *of_y = pooled.of<T>(), *of_g = numbers.of<T>();
    return check_memory(p.mode == MAX ? spread<T, true>(s, of_x, of_y, of_g, to)
                                      : spread<T, false>(s, of_x, of_y, of_g, to));
}

} // namespace synk_pool
