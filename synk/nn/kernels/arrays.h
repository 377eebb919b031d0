/* Numpy's arrays as kernels take them: in C order; and room for what they return. */

#include <stdlib.h>

namespace synk_arrays {

/* An array in C order: the same one, or a copy; null, with an error set, if there is no
memory for that. */
struct Contiguous {
    PyArrayObject *array;
    explicit Contiguous(PyArrayObject *any) : array(PyArray_GETCONTIGUOUS(any)) {}
    ~Contiguous() { Py_XDECREF(array); }
    template <typename T> const T *of() const {
        return static_cast<const T *>(PyArray_DATA(array));
    }

  private:
    Contiguous(const Contiguous &);
    void operator=(const Contiguous &);
};

/* Replace a result by an array of a shape, unless it is one that can be written to. */
static bool make_room(PyArrayObject **result, int ndim, const npy_intp *shape, int type) {
    PyArrayObject *old = *result;
    if (old && PyArray_IS_C_CONTIGUOUS(old) && PyArray_ISWRITEABLE(old)
        && PyArray_NDIM(old) == ndim
        && PyArray_CompareLists(PyArray_DIMS(old), shape, ndim))
        return true;
    Py_XDECREF(old);
    *result = reinterpret_cast<PyArrayObject *>(PyArray_EMPTY(ndim, shape, type, 0));
    return *result != NULL;
}

/* Memory that is given back in the end; null if there is none. */
template <typename T> struct Room {
    T *at;
    explicit Room(long count)
        : at(static_cast<T *>(malloc((count < 1 ? 1 : count) * sizeof(T)))) {}
    ~Room() { free(at); }

  private:
    Room(const Room &);
    void operator=(const Room &);
};

/* Set an error if there was no memory. */
static inline bool check_memory(bool there) {
    if (!there) PyErr_NoMemory();
    return there;
}

} // namespace synk_arrays
