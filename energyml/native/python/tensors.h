// Tensors at the border with Python, as plain pointers and sizes, without torch's headers.
//
// A tensor is looked into by the functions that torch exchanges tensors with (`Tensor.__dlpack_c_exchange_api__`,
// DLPack 1.x), which takes a tenth of the time of asking for its attributes one by one; a torch that has none of them
// is asked for the attributes.
#pragma once

#include <initializer_list>
#include <utility>

#include "arguments.h"

namespace energyml {

// The parts of DLPack's interface that are used here.
struct DLTensor {
    void* data;
    int32_t device, device_number;
    int32_t dims;
    uint8_t code, bits;
    uint16_t lanes;
    const int64_t* shape;
    const int64_t* strides;  // null: contiguous
    uint64_t offset;         // in bytes
};
struct Exchange {
    uint32_t major, minor;
    Exchange* older;
    void *allocate, *share, *adopt;
    int (*look)(void* tensor, DLTensor* out);
};

// What Python has told the module about torch.
struct Torch {
    PyObject *tensor, *parameter, *empty_like, *get_num_threads;
    PyObject* kinds[3];  // dtypes, in the order of Kind
    const Exchange* exchange;
    PyObject *new_empty, *dtype;  // names
};
inline Torch torch{};

// introduce(Tensor, Parameter, empty_like, get_num_threads, float32, float64, int64, exchange or None)
inline PyObject* introduce(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 8)) return nullptr;
    for (Py_ssize_t i = 0; i < n - 1; ++i) Py_INCREF(args[i]);  // for as long as the process lives
    torch = {args[0],
             args[1],
             args[2],
             args[3],
             {args[4], args[5], args[6]},
             nullptr,
             PyUnicode_InternFromString("new_empty"),
             PyTuple_Pack(1, PyUnicode_InternFromString("dtype"))};
    if (!torch.new_empty || !torch.dtype) return nullptr;
    if (args[7] != Py_None) {
        const Exchange* found = static_cast<const Exchange*>(PyCapsule_GetPointer(args[7], "dlpack_exchange_api"));
        if (!found) return nullptr;
        if (found->major == 1 && found->look) torch.exchange = found;
    }
    Py_RETURN_NONE;
}

// An object of Python's that is held.
struct Object {
    PyObject* held;
    explicit Object(PyObject* object = nullptr) : held(object) {}
    Object(Object&& other) : held(other.given_away()) {}
    ~Object() { Py_XDECREF(held); }
    Object& operator=(Object&& other) {
        std::swap(held, other.held);
        return *this;
    }
    explicit operator bool() const { return held; }
    PyObject* given_away() {
        PyObject* object = held;
        held = nullptr;
        return object;
    }
};

enum Kind { FLOATS, DOUBLES, WHOLES, OTHERS };

struct Tensor {
    static constexpr int most = 4;  // dims
    void* data = nullptr;
    int64_t shape[most] = {}, strides[most] = {};
    int dims = 0;
    Kind kind = OTHERS;

    template <class T> T* as() const { return static_cast<T*>(data); }
    int64_t count() const {
        int64_t all = 1;
        for (int i = 0; i < dims; ++i) all *= shape[i];
        return all;
    }
    bool contiguous() const {
        int64_t each = 1;
        for (int i = dims; i-- > 0; each *= shape[i])
            if (shape[i] != 1 && strides[i] != each && count() != 0) return false;
        return true;
    }
};

// Through the exchange functions.
inline bool looked_into(PyObject* object, Tensor& out) {
    constexpr int32_t processor = 1;
    constexpr uint8_t whole = 0, real = 2;
    DLTensor found;
    if (torch.exchange->look(object, &found) != 0 || found.device != processor || found.dims > Tensor::most ||
        found.lanes != 1)
        return false;
    out.data = static_cast<char*>(found.data) + found.offset;
    out.dims = found.dims;
    out.kind = found.code == real && found.bits == 32    ? FLOATS
               : found.code == real && found.bits == 64  ? DOUBLES
               : found.code == whole && found.bits == 64 ? WHOLES
                                                         : OTHERS;
    for (int i = out.dims; i-- > 0;) {
        out.shape[i] = found.shape[i];
        out.strides[i] = found.strides      ? found.strides[i]
                         : i + 1 < out.dims ? out.strides[i + 1] * out.shape[i + 1]
                                            : 1;
    }
    return true;
}

// The numbers of a tuple of Python's, as many as there may be dims; how many, or -1.
inline int numbers_of(const Object& tuple, int64_t* out) {
    if (!tuple || !PyTuple_Check(tuple.held) || PyTuple_GET_SIZE(tuple.held) > Tensor::most) return -1;
    const int count = static_cast<int>(PyTuple_GET_SIZE(tuple.held));
    for (int i = 0; i < count; ++i) out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.held, i));
    return count;
}

// By its attributes.
inline bool asked_for(PyObject* object, Tensor& out) {
    const Object here(PyObject_GetAttrString(object, "is_cpu")), kind(PyObject_GetAttrString(object, "dtype"));
    if (here.held != Py_True || !kind) return false;
    out.kind = OTHERS;
    for (int k = 0; k < 3; ++k)
        if (kind.held == torch.kinds[k]) out.kind = static_cast<Kind>(k);
    out.dims = numbers_of(Object(PyObject_GetAttrString(object, "shape")), out.shape);
    if (out.dims < 0 || numbers_of(Object(PyObject_CallMethod(object, "stride", nullptr)), out.strides) != out.dims)
        return false;
    const Object place(PyObject_CallMethod(object, "data_ptr", nullptr));
    out.data = place ? PyLong_AsVoidPtr(place.held) : nullptr;
    return !PyErr_Occurred();
}

// Whether an object is a tensor in the processor's memory, of torch's own classes (others may hold no numbers), and
// what it is.
inline bool read(PyObject* object, Tensor& out) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (!torch.tensor || (type != torch.tensor && type != torch.parameter)) return false;
    if (torch.exchange ? looked_into(object, out) : asked_for(object, out)) return true;
    PyErr_Clear();
    return false;
}

// The same of one that is contiguous.
inline bool read_plain(PyObject* object, Tensor& out) { return read(object, out) && out.contiguous(); }

// New tensors, not filled: like another one, or of some sizes beside it (in whole numbers, if asked); and what they
// are.
inline Object empty_like(PyObject* object, Tensor& out) {
    Object made(PyObject_CallOneArg(torch.empty_like, object));
    if (made && !read_plain(made.held, out))
        PyErr_SetString(PyExc_TypeError, "expected torch.empty_like to make a tensor of torch's");
    return PyErr_Occurred() ? Object() : std::move(made);
}
inline Object empty(PyObject* beside, std::initializer_list<int64_t> sizes, bool whole, Tensor& out) {
    PyObject* args[Tensor::most + 2] = {beside};
    size_t count = 1;
    for (int64_t size : sizes) args[count++] = PyLong_FromLongLong(size);
    args[count] = torch.kinds[WHOLES];
    Object made(PyObject_VectorcallMethod(torch.new_empty, args, count, whole ? torch.dtype : nullptr));
    for (size_t i = 1; i < count; ++i) Py_XDECREF(args[i]);
    if (made && !read_plain(made.held, out))
        PyErr_SetString(PyExc_TypeError, "expected new_empty to make a tensor of torch's");
    return PyErr_Occurred() ? Object() : std::move(made);
}

// How many threads some work is worth, at most as many as torch has; 0, with a Python error set, where that cannot be
// found out.
inline int threads_for(int64_t work, int64_t worth, int64_t most) {
    if (work < 2 * worth) return 1;
    const Object count(PyObject_CallNoArgs(torch.get_num_threads));
    if (!count) return 0;
    return static_cast<int>(std::max<int64_t>(
        1, std::min<int64_t>({PyLong_AsLongLong(count.held), most, work / std::max<int64_t>(worth, 1)})));
}

}  // namespace energyml
