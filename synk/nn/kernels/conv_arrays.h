/* Convolution of numpy's arrays: shapes, memory and errors; the kernels: conv.h. */

namespace synk_conv {

using synk_arrays::Contiguous;
using synk_arrays::check_memory;
using synk_arrays::make_room;

/* Of an Op; see `ConvOp`. */
struct Parameters {
    npy_intp border, top, bottom, left, right, down, along, flip, groups;
};

/* Set the margins at both ends of an axis, and the length of the outputs. */
static void find_axis(long size, long reach, long border, long *low, long high,
                      long *length) {
    if (border) *low = high = border == 1 ? reach / 2 : reach - 1;
    *length = size + *low + high - reach + 1;
}

static bool refuse(const char *what, const npy_intp *x, const npy_intp *w,
                   const npy_intp *y, npy_intp groups) {
    char outputs[100] = "";
    if (y)
        snprintf(outputs, sizeof outputs, ", and outputs of shape (%ld, %ld, %ld, %ld)",
                 (long)y[0], (long)y[1], (long)y[2], (long)y[3]);
    PyErr_Format(PyExc_ValueError,
                 "%s: inputs of shape (%ld, %ld, %ld, %ld) have %ld channels; filters of"
                 " shape (%ld, %ld, %ld, %ld) in %ld groups need %ld%s",
                 what, (long)x[0], (long)x[1], (long)x[2], (long)x[3], (long)x[1],
                 (long)w[0], (long)w[1], (long)w[2], (long)w[3], (long)groups,
                 (long)(w[1] * groups), outputs);
    return false;
}

/* Find the sizes of a convolution; outputs `y` are checked if there are any. */
static bool find_sizes(const Parameters &p, const npy_intp *x, const npy_intp *w,
                       const npy_intp *y, Sizes *s) {
    if (x[1] != w[1] * p.groups || w[0] % p.groups)
        return refuse("numbers of channels or filters do not fit", x, w, y, p.groups);
    s->batch = x[0], s->groups = p.groups;
    s->channels = w[1], s->filters = w[0] / p.groups;
    s->rows = x[2], s->columns = x[3];
    s->window_rows = w[2], s->window_columns = w[3];
    s->down = p.down, s->along = p.along, s->top = p.top, s->left = p.left;
    find_axis(x[2], (w[2] - 1) * p.down + 1, p.border, &s->top, p.bottom, &s->out_rows);
    find_axis(x[3], (w[3] - 1) * p.along + 1, p.border, &s->left, p.right,
              &s->out_columns);
    if (s->out_rows < 1 || s->out_columns < 1)
        return refuse("filters do not fit into images with margins", x, w, y, p.groups);
    if (y && (y[0] != x[0] || y[1] != w[0] || y[2] != s->out_rows
              || y[3] != s->out_columns))
        return refuse("outputs have another shape", x, w, y, p.groups);
    return true;
}

template <typename T>
bool compute_outputs(const Parameters &p, PyArrayObject *x, PyArrayObject *w,
                     PyArrayObject **y) {
    Sizes s;
    if (!find_sizes(p, PyArray_DIMS(x), PyArray_DIMS(w), NULL, &s)) return false;
    const npy_intp shape[] = {s.batch, PyArray_DIM(w, 0), s.out_rows, s.out_columns};
    Contiguous inputs(x), filters(w);
    if (!inputs.array || !filters.array || !make_room(y, 4, shape, PyArray_TYPE(x)))
        return false;
    const Filters<T> packed = {filters.of<T>(), s.places(), s.window(), p.flip != 0};
    return check_memory(correlate(s, inputs.of<T>(), packed, s.filters * s.places(),
                                  static_cast<T *>(PyArray_DATA(*y))));
}

template <typename T>
bool compute_inputs(const Parameters &p, PyArrayObject *x, PyArrayObject *w,
                    PyArrayObject *y, PyArrayObject **result) {
    Sizes s;
    if (!find_sizes(p, PyArray_DIMS(x), PyArray_DIMS(w), PyArray_DIMS(y), &s))
        return false;
    Contiguous filters(w), outputs(y);
    if (!filters.array || !outputs.array
        || !make_room(result, 4, PyArray_DIMS(x), PyArray_TYPE(y)))
        return false;
    return check_memory(correlate_inputs(s, outputs.of<T>(), filters.of<T>(),
                                         p.flip != 0,
                                         static_cast<T *>(PyArray_DATA(*result))));
}

template <typename T>
bool compute_filters(const Parameters &p, PyArrayObject *x, PyArrayObject *w,
                     PyArrayObject *y, PyArrayObject **result) {
    Sizes s;
    if (!find_sizes(p, PyArray_DIMS(x), PyArray_DIMS(w), PyArray_DIMS(y), &s))
        return false;
    Contiguous inputs(x), outputs(y);
    if (!inputs.array || !outputs.array
        || !make_room(result, 4, PyArray_DIMS(w), PyArray_TYPE(y)))
        return false;
    return check_memory(correlate_filters(s, inputs.of<T>(), outputs.of<T>(),
                                          p.flip != 0,
                                          static_cast<T *>(PyArray_DATA(*result))));
}

} // namespace synk_conv
