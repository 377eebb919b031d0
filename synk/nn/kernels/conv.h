/* Convolution of images at a stride of one, of float or double.

A block of an image's rows is copied with its margin into room of its own, so that the
pixels under one place of the window, for a row of outputs after another, lie one after
another: at a pitch that is the margin longer than a row of outputs. Products with them
are then those of matrices, whose columns need not be gathered (M. Chellapilla et al.
2006 gather them); results between two rows belong to no output and are dropped.

`correlate` has vectors of pixels, and numbers of the filters spread over a vector.
`correlate_filters`, the adjoint in the filters, has vectors of filters, and pixels
spread over a vector; so sums over pixels need no sums within a vector. */

#include <string.h>

namespace synk_conv {

using synk_arrays::Room;

/* The registers hold ROWS x VECTORS sums, a row of vectors and a number. */
#if defined(__AVX512F__)
enum { BYTES = 64, ROWS = 8, VECTORS = 3, PLACES = 6, WIDE = 4 };
#elif defined(__AVX__)
enum { BYTES = 32, ROWS = 4, VECTORS = 3, PLACES = 6, WIDE = 2 };
#else
enum { BYTES = 16, ROWS = 4, VECTORS = 2, PLACES = 4, WIDE = 2 };
#endif

enum {
    IMAGE_BYTES = 1 << 18, /* of a block of rows: it stays in the cache */
    PIXELS = 256           /* summed up in float before a sum is added to others */
};

template <typename T> struct Vector {
    typedef T Type __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
    enum { LANES = BYTES / sizeof(T) };
};

/* Of one convolution; channels and filters are those of a group. */
struct Sizes {
    long batch, groups, channels, filters;
    long rows, columns;             /* of an input */
    long window_rows, window_columns;
    long down, along;               /* dilation */
    long top, left;                 /* margins; below zero for what is cut off */
    long out_rows, out_columns;

    long window() const { return window_rows * window_columns; }
    long places() const { return channels * window(); }
    long reach() const { return (window_rows - 1) * down; }
    long pitch() const { return out_columns + (window_columns - 1) * along; }
    long pixels() const { return out_rows * out_columns; }
};

static long at_least(long a, long b) { return a < b ? b : a; }
static long at_most(long a, long b) { return a < b ? a : b; }
static long up_to_multiple(long n, long of) { return (n + of - 1) / of * of; }

/* How many rows of outputs are computed at a time. */
template <typename T> long rows_at_a_time(const Sizes &s) {
    long row_bytes = at_least(1, s.channels * s.pitch() * (long)sizeof(T));
    return at_least(1, at_most(s.out_rows, IMAGE_BYTES / row_bytes - s.reach()));
}

template <typename T> long image_room(const Sizes &s, long rows) {
    /* a vector of results may begin in the last row and end behind it */
    return s.channels * (rows + s.reach()) * s.pitch() + VECTORS * Vector<T>::LANES;
}

/* Copy what `rows` rows of outputs from `first` see of an image, with its margin. */
template <typename T>
void fill(const Sizes &s, const T *x, long first, long rows, T *image) {
    const long pitch = s.pitch();
    const long begin = at_most(pitch, at_least(0, s.left));
    const long end = at_least(begin, at_most(pitch, s.left + s.columns));
    for (long c = 0; c < s.channels; c++)
        for (long r = first - s.top; r < first - s.top + rows + s.reach(); r++) {
            if (r < 0 || r >= s.rows)
                memset(image, 0, pitch * sizeof(T));
            else {
                const T *row = x + (c * s.rows + r) * s.columns - s.left;
                for (long q = 0; q < begin; q++) image[q] = 0;
                memcpy(image + begin, row + begin, (end - begin) * sizeof(T));
                for (long q = end; q < pitch; q++) image[q] = 0;
            }
            image += pitch;
        }
    memset(image, 0, VECTORS * BYTES);
}

/* Where the pixels of each place of the window begin, for `rows` rows of outputs. */
inline void find_places(const Sizes &s, long rows, long *places) {
    for (long c = 0; c < s.channels; c++)
        for (long i = 0; i < s.window_rows; i++)
            for (long j = 0; j < s.window_columns; j++)
                *places++ = (c * (rows + s.reach()) + i * s.down) * s.pitch()
                    + j * s.along;
}

/* Filters as they lie in memory: numbers between filters, and between channels. */
template <typename T> struct Filters {
    const T *at;
    long filter, channel;
    bool backwards; /* each window from its end */
};

/* How many filters are computed at a time, of those that are left. */
inline long filters_at_a_time(long left) {
    if (left >= ROWS) return ROWS;
    return left > ROWS / 2 ? ROWS : left > ROWS / 4 ? ROWS / 2 : left > 1 ? ROWS / 4 : 1;
}

/* Copy a group's filters such that those computed at a time lie side by side. */
template <typename T> void pack(const Sizes &s, Filters<T> w, T *packed) {
    const long window = s.window();
    for (long m = 0, some; m < s.filters; m += some) {
        some = filters_at_a_time(s.filters - m);
        for (long c = 0; c < s.channels; c++)
            for (long k = 0; k < window; k++)
                for (long i = m; i < m + some; i++) {
                    long place = w.backwards ? window - 1 - k : k;
                    *packed++ = i < s.filters
                        ? w.at[i * w.filter + c * w.channel + place] : 0;
                }
    }
}

/* Sum over places filters times pixels, for SOME filters and COUNT vectors of pixels.

Results of one filter are at a distance from those of the next. */
template <typename T, int SOME, int COUNT>
void multiply(long places, const T *w, const T *image, const long *begin, T *results,
              long distance) {
    typedef typename Vector<T>::Type V;
    V sums[SOME][COUNT] = {};
    for (long k = 0; k < places; k++, w += SOME) {
        const V *row = reinterpret_cast<const V *>(image + begin[k]);
        V pixels[COUNT];
        for (int v = 0; v < COUNT; v++) pixels[v] = row[v];
        for (int m = 0; m < SOME; m++)
            for (int v = 0; v < COUNT; v++) sums[m][v] += pixels[v] * w[m];
    }
    for (int m = 0; m < SOME; m++)
        for (int v = 0; v < COUNT; v++)
            reinterpret_cast<V *>(results + m * distance)[v] = sums[m][v];
}

template <typename T, int COUNT>
void multiply_some(long some, long places, const T *w, const T *image,
                   const long *begin, T *results, long distance) {
    if (some == ROWS)
        multiply<T, ROWS, COUNT>(places, w, image, begin, results, distance);
    else if (some == ROWS / 2)
        multiply<T, ROWS / 2, COUNT>(places, w, image, begin, results, distance);
    else if (some == 1)
        multiply<T, 1, COUNT>(places, w, image, begin, results, distance);
    else multiply<T, ROWS / 4, COUNT>(places, w, image, begin, results, distance);
}

/* Copy results for some filters, from pixel `first` on at the pitch of the image.

They go into some rows of outputs, in `y` and so on, at a distance of all pixels. Whole
vectors are copied: what comes too much is overwritten by the row behind, if there is
one. */
template <typename T>
void keep(const Sizes &s, long first, long rows, long some, const T *results, T *y) {
    typedef typename Vector<T>::Type V;
    const long lanes = Vector<T>::LANES, width = VECTORS * lanes;
    const long room = rows * s.out_columns, distance = s.pixels();
    long row = first / s.pitch(), column = first % s.pitch();
    for (long at = 0; at < width && row < rows; row++, column = 0) {
        const long count = at_most(s.out_columns - column, width - at);
        const long to = row * s.out_columns + column;
        const bool whole = to + up_to_multiple(count, lanes) <= room;
        for (long m = 0; m < some; m++) {
            const T *source = results + m * width + at;
            T *target = y + m * distance + to;
            if (whole)
                for (long i = 0; i < count; i += lanes)
                    *reinterpret_cast<V *>(target + i)
                        = *reinterpret_cast<const V *>(source + i);
            else
                for (long i = 0; i < count; i++) target[i] = source[i];
        }
        at += s.pitch() - column;
    }
}

/* Compute some filters' outputs, for some rows of outputs. */
template <typename T>
void multiply_rows(const Sizes &s, long rows, long some, const T *w, const T *image,
                   const long *begin, long kept, T *results, T *y) {
    const long lanes = Vector<T>::LANES, places = s.places(), width = VECTORS * lanes;
    const long end = (rows - 1) * s.pitch() + s.out_columns;
    const bool dense = s.pitch() == s.out_columns && some == kept;
    for (long p = 0; p < end; p += width) {
        const bool straight = dense && p + width <= end;
        T *to = straight ? y + p : results;
        const long distance = straight ? s.pixels() : width;
        const long left = (end - p + lanes - 1) / lanes;
        if (left == 1)
            multiply_some<T, 1>(some, places, w, image + p, begin, to, distance);
        else if (left == 2)
            multiply_some<T, 2>(some, places, w, image + p, begin, to, distance);
        else
            multiply_some<T, VECTORS>(some, places, w, image + p, begin, to, distance);
        if (!straight) keep(s, p, rows, kept, results, y);
    }
}

/* Compute the outputs y (batch, groups, filters, rows, columns). False: no memory. */
template <typename T>
bool correlate(const Sizes &s, const T *x, Filters<T> w, long group, T *y) {
    const long block = rows_at_a_time<T>(s), window = s.places();
    const long size = up_to_multiple(s.filters, ROWS);
    Room<T> image(image_room<T>(s, block)), packed(s.groups * size * window);
    Room<T> results((ROWS * VECTORS + VECTORS) * Vector<T>::LANES);
    Room<long> places(window);
    if (!image.at || !packed.at || !results.at || !places.at) return false;
    for (long g = 0; g < s.groups; g++) {
        Filters<T> of_group = w;
        of_group.at += g * group;
        pack(s, of_group, packed.at + g * size * window);
    }
    for (long i = 0; i < s.batch * s.groups; i++) {
        const T *from = x + i * s.channels * s.rows * s.columns;
        for (long first = 0; first < s.out_rows; first += block) {
            const long rows = at_most(block, s.out_rows - first);
            fill(s, from, first, rows, image.at);
            find_places(s, rows, places.at);
            const T *filters = packed.at + i % s.groups * size * window;
            for (long m = 0, some; m < s.filters; filters += some * window, m += some) {
                some = filters_at_a_time(s.filters - m);
                T *to = y + (i * s.filters + m) * s.pixels() + first * s.out_columns;
                multiply_rows(s, rows, some, filters, image.at, places.at,
                              at_most(some, s.filters - m), results.at, to);
            }
        }
    }
    return true;
}

/* Add products of pixels and outputs, at PLACES places for COUNT vectors of filters. */
template <typename T, int COUNT>
void add_products(const Sizes &s, long rows, const T *image, const long *places,
                  const T *y, long pitch, T *sums) {
    typedef typename Vector<T>::Type V;
    const T *pixel[PLACES];
    for (int k = 0; k < PLACES; k++) pixel[k] = image + places[k];
    V sum[PLACES][COUNT] = {};
    for (long r = 0; r < rows; r++)
        for (long q = r * s.pitch(); q < r * s.pitch() + s.out_columns; q++) {
            const V *filters = reinterpret_cast<const V *>(y);
            V output[COUNT];
            for (int v = 0; v < COUNT; v++) output[v] = filters[v];
            for (int k = 0; k < PLACES; k++)
                for (int v = 0; v < COUNT; v++) sum[k][v] += output[v] * pixel[k][q];
            y += pitch;
        }
    for (int k = 0; k < PLACES; k++)
        for (int v = 0; v < COUNT; v++)
            reinterpret_cast<V *>(sums + k * pitch)[v] += sum[k][v];
}

/* Copy outputs such that those of a pixel, for all filters, lie side by side. */
template <typename T>
void turn(const Sizes &s, const T *y, long count, long pitch, T *turned) {
    const long lanes = Vector<T>::LANES, plane = s.pixels();
    for (long m = 0; m < s.filters; m += lanes) {
        const long some = at_most(lanes, s.filters - m);
        for (long p = 0; p < count; p++) {
            const T *from = y + m * plane + p;
            T *to = turned + p * pitch + m;
            if (some == lanes)
                for (long i = 0; i < lanes; i++) to[i] = from[i * plane];
            else
                for (long i = 0; i < some; i++) to[i] = from[i * plane];
        }
    }
}

/* Compute the adjoint in the filters, w (groups, filters, channels, window). */
template <typename T>
bool correlate_filters(const Sizes &s, const T *x, const T *y, bool backwards, T *w) {
    const long lanes = Vector<T>::LANES, pitch = up_to_multiple(s.filters, lanes);
    const long window = s.places(), room = up_to_multiple(window, PLACES);
    const long block = at_most(rows_at_a_time<T>(s),
                               at_least(1, PIXELS / at_least(1, s.out_columns)));
    Room<T> image(image_room<T>(s, block)), turned(block * s.out_columns * pitch);
    Room<T> sums(s.groups * room * pitch);
    Room<long> places(room);
    if (!image.at || !turned.at || !sums.at || !places.at) return false;
    memset(sums.at, 0, s.groups * room * pitch * sizeof(T));
    memset(turned.at, 0, block * s.out_columns * pitch * sizeof(T));
    memset(places.at, 0, room * sizeof(long)); /* those too many: any pixel */
    for (long i = 0; i < s.batch * s.groups; i++)
        for (long first = 0; first < s.out_rows; first += block) {
            const long rows = at_most(block, s.out_rows - first);
            const T *outputs = y + i * s.filters * s.pixels() + first * s.out_columns;
            fill(s, x + i * s.channels * s.rows * s.columns, first, rows, image.at);
            find_places(s, rows, places.at);
            turn(s, outputs, rows * s.out_columns, pitch, turned.at);
            T *total = sums.at + i % s.groups * room * pitch;
            for (long m = 0, some; m < pitch; m += some * lanes) {
                some = at_most(WIDE, (pitch - m) / lanes);
                for (long k = 0; k < window; k += PLACES) {
                    const T *from = turned.at + m;
                    T *to = total + k * pitch + m;
#define SYNK_ADD(COUNT) add_products<T, COUNT>( \
                        s, rows, image.at, places.at + k, from, pitch, to)
                    if (some == WIDE) SYNK_ADD(WIDE);
                    else if (some == 1) SYNK_ADD(1);
                    else if (some == 2) SYNK_ADD(2);
                    else SYNK_ADD(3);
#undef SYNK_ADD
                }
            }
        }
    for (long g = 0; g < s.groups; g++)
        for (long m = 0; m < s.filters; m++)
            for (long k = 0; k < window; k++) {
                long at = k % s.window();
                long to = k - at + (backwards ? s.window() - 1 - at : at);
                w[(g * s.filters + m) * window + to]
                    = sums.at[(g * room + k) * pitch + m];
            }
    return true;
}

/* Tell whether no number is infinite or NaN. */
template <typename T> bool is_finite(const T *w, long count) {
    bool finite = true;
    for (long i = 0; i < count; i++) finite &= w[i] - w[i] == 0;
    return finite;
}

/* Add the adjoint in the inputs to x, a place in the window after another.

A margin has no part in it, as it has in `correlate`, where an infinite number in a
filter times a zero in the margin is NaN. */
template <typename T>
void spread(const Sizes &s, const T *y, const T *w, bool backwards, T *x) {
    const long window = s.window();
    for (long i = 0; i < s.batch * s.groups * s.filters * s.channels * window; i++) {
        const long k = i % window, c = i / window % s.channels;
        const long m = i / window / s.channels % s.filters;
        const long image = i / window / s.channels / s.filters;
        const long place = backwards ? window - 1 - k : k;
        const T number = w[((image % s.groups * s.filters + m) * s.channels + c) * window
                           + place];
        const long row = k / s.window_columns * s.down - s.top;
        const long column = k % s.window_columns * s.along - s.left;
        for (long r = at_least(0, -row); r < at_most(s.out_rows, s.rows - row); r++) {
            const T *from = y + ((image * s.filters + m) * s.out_rows + r)
                * s.out_columns;
            T *to = x + ((image * s.channels + c) * s.rows + r + row) * s.columns
                + column;
            for (long q = at_least(0, -column);
                 q < at_most(s.out_columns, s.columns - column); q++)
                to[q] += from[q] * number;
        }
    }
}

/* Compute the adjoint in the inputs, x (batch, groups, channels, rows, columns).

It is the convolution of the outputs with filters turned, and another margin. */
template <typename T>
bool correlate_inputs(const Sizes &s, const T *y, const T *w, bool backwards, T *x) {
    const long of_filter = s.channels * s.window(), group = s.filters * of_filter;
    if (!is_finite(w, s.groups * group)) {
        memset(x, 0, s.batch * s.groups * s.channels * s.rows * s.columns * sizeof(T));
        spread(s, y, w, backwards, x);
        return true;
    }
    Sizes turned = s;
    turned.channels = s.filters, turned.filters = s.channels;
    turned.rows = s.out_rows, turned.columns = s.out_columns;
    turned.out_rows = s.rows, turned.out_columns = s.columns;
    turned.top = (s.window_rows - 1) * s.down - s.top;
    turned.left = (s.window_columns - 1) * s.along - s.left;
    Filters<T> filters = {w, s.window(), of_filter, !backwards};
    return correlate(turned, y, filters, group, x);
}

} // namespace synk_conv
