// Native kernels for Gaussian fields on grids, as a module over plain pointers: the caller owns every buffer.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdlib>

#include "fields_solve.h"

namespace energyml {

// Systems of a batch [examples, channels]; strides are 0 where a size is 1.
template <class T> struct Fields {
    Grid grid;
    int64_t examples, channels;
    const T* diagonal;
    int64_t diagonal_example, diagonal_channel;
    bool varying_diagonal;
    const T* weights;
    int64_t weights_example, weights_direction;
    bool constant;

    int64_t count() const { return examples * channels; }
    Matrix<T> matrix(int64_t number, const T* zeros) const {
        const int64_t example = number / channels, channel = number % channels;
        return {&grid, diagonal + example * diagonal_example + channel * diagonal_channel, varying_diagonal,
                weights + example * weights_example, weights_direction, constant, zeros};
    }
};

// What is asked of all systems, and where the answers go; fields [examples, channels, cells], the others [examples, channels].
template <class T> struct Wanted {
    const T* rhs;
    const T* start;  // or null
    T* x;
    double tolerance;
    int64_t most;
    bool jacobi;
    int64_t* iterations;
    double* residual;
    uint8_t* negative;
};

// Memory in large pages where the system has them: touching it for the first time is then hundreds of times cheaper.
class Memory {
  public:
    explicit Memory(size_t bytes) {
        constexpr size_t line = 64, page = size_t{1} << 21;
        const size_t unit = bytes >= 2 * page ? page : line, whole = (bytes + unit - 1) / unit * unit;
        data_ = static_cast<char*>(std::aligned_alloc(unit, std::max(whole, line)));
#ifdef __linux__
        if (data_ && unit == page) madvise(data_, whole, MADV_HUGEPAGE);
#endif
    }
    ~Memory() { std::free(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    char* data() const { return data_; }

  private:
    char* data_;
};

// What one solve at a time works in.
template <class T> class Room {
  public:
    Room(const Grid& grid, bool jacobi)
        : memory_(2 * grid.pieces * sizeof(Sums) + 3 * bytes(grid, sizeof(T)) + (jacobi ? bytes(grid, sizeof(float)) : 0)) {
        char* next = memory_.data();
        sums_ = reinterpret_cast<Sums*>(next);
        next += 2 * grid.pieces * sizeof(Sums);
        for (T** one : {&vectors_.r, &vectors_.p, &vectors_.s}) {
            *one = reinterpret_cast<T*>(next);
            next += bytes(grid, sizeof(T));
        }
        vectors_.inverse = jacobi ? reinterpret_cast<float*>(next) : nullptr;
    }
    bool fine() const { return memory_.data() != nullptr; }

    // Solve system `number` as one of a team that shares this room.  `holds` is the member's own note of whose diagonal is inverted.
    void solve(const Fields<T>& fields, const Wanted<T>& wanted, const T* zeros, int64_t number, Member member, Matrix<T>& holds) const {
        const int64_t at = number * fields.grid.cells;
        const System<T> system{fields.matrix(number, zeros), wanted.rhs + at, wanted.start ? wanted.start + at : nullptr,
                               wanted.tolerance, wanted.most, wanted.jacobi};
        Vectors<T> vectors = vectors_;
        vectors.x = wanted.x + at;
        bool inverted = system.matrix.diagonal == holds.diagonal && system.matrix.weights == holds.weights;
        const Found found = Solver<T>(system, vectors, sums_, member).run(inverted);
        if (inverted) holds = system.matrix;
        if (member.rank) return;
        wanted.iterations[number] = found.iterations;
        wanted.residual[number] = found.residual;
        wanted.negative[number] = found.negative;
    }

  private:
    // Lines more than needed: arrays at equal distances from pages would compete for the same places in the cache.
    static size_t bytes(const Grid& grid, size_t size) { return round_up(grid.cells * size, 64) + 9 * 64; }
    Memory memory_;
    Vectors<T> vectors_{};
    Sums* sums_;
};

// As many systems as threads at a time, each by one thread; the last ones by a team, where that is faster.  False when memory ran out.
template <class T> static bool solve_all(const Fields<T>& fields, const Wanted<T>& wanted, int threads, int team) {
    const std::vector<T> zeros(fields.grid.width);
    const int64_t left = fields.count() % threads, apart = fields.count() - (left < team ? left : 0);
    bool fine = true;
    if (apart) {
        const int busy = static_cast<int>(std::min<int64_t>(threads, apart));
#ifdef _OPENMP
#pragma omp parallel num_threads(busy) if (busy > 1)
#endif
        {
            const Room<T> room(fields.grid, wanted.jacobi);
            Matrix<T> holds{};
            if (!room.fine()) fine = false;
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
            for (int64_t number = 0; number < apart; ++number)
                if (room.fine()) room.solve(fields, wanted, zeros.data(), number, {0, 1}, holds);
        }
    }
    if (apart == fields.count() || !fine) return fine;
    const Room<T> room(fields.grid, wanted.jacobi);
    if (!room.fine()) return false;
#ifdef _OPENMP
#pragma omp parallel num_threads(team) if (team > 1)
#endif
    {
        Member member{0, 1};
#ifdef _OPENMP
        member = {omp_get_thread_num(), omp_get_num_threads()};
#endif
        Matrix<T> holds{};
        for (int64_t number = apart; number < fields.count(); ++number) {
            room.solve(fields, wanted, zeros.data(), number, member, holds);
            member.wait();
        }
    }
    return true;
}

template <class T> static void multiply_all(const Fields<T>& fields, const T* x, T* out, int threads) {
    const std::vector<T> zeros(fields.grid.width);
    const int64_t pieces = fields.grid.pieces, all = fields.count() * pieces;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
#endif
    for (int64_t k = 0; k < all; ++k) {
        const int64_t number = k / pieces, at = number * fields.grid.cells;
        Sweeps<T>::multiply(fields.matrix(number, zeros.data()), x + at, out + at, k % pieces);
    }
}

}  // namespace energyml

using namespace energyml;

// The arguments of a call, one after another.
struct Arguments {
    PyObject* const* next;
    int64_t number() { return PyLong_AsLongLong(*next++); }
    double real() { return PyFloat_AsDouble(*next++); }
    template <class T> T pointer() { return reinterpret_cast<T>(static_cast<intptr_t>(number())); }
};

static constexpr Py_ssize_t OF_FIELDS = 15;

template <class T> static Fields<T> read_fields(Arguments& take) {
    const int64_t planes = take.number(), rows = take.number(), width = take.number();
    const auto* offsets = take.pointer<const int64_t*>();
    const int64_t directions = take.number();
    if (PyErr_Occurred()) return {Grid(0, 0, 0, nullptr, 0), 0, 0, nullptr, 0, 0, false, nullptr, 0, 0, false};
    Fields<T> fields{Grid(planes, rows, width, offsets, directions), take.number(), take.number(), take.pointer<const T*>(),
                     take.number(), take.number(), take.number() != 0, take.pointer<const T*>(), take.number(), take.number(),
                     take.number() != 0};
    return fields;
}

template <class T> static bool read_and_solve(Arguments take) {
    const Fields<T> fields = read_fields<T>(take);
    Wanted<T> wanted;
    wanted.rhs = take.pointer<const T*>();
    wanted.start = take.pointer<const T*>();
    wanted.x = take.pointer<T*>();
    wanted.tolerance = take.real();
    wanted.most = take.number();
    wanted.jacobi = take.number() != 0;
    wanted.iterations = take.pointer<int64_t*>();
    wanted.residual = take.pointer<double*>();
    wanted.negative = take.pointer<uint8_t*>();
    const int threads = static_cast<int>(take.number());
    const int team = static_cast<int>(take.number());
    if (PyErr_Occurred()) return true;
    bool fine = true;
    Py_BEGIN_ALLOW_THREADS
    fine = solve_all<T>(fields, wanted, threads, team);
    Py_END_ALLOW_THREADS
    return fine;
}

// solve(double?, planes, rows, width, offsets, directions, B, M, diagonal, diagonal_example, diagonal_channel, varying_diagonal?, weights,
//       weights_example, weights_direction, constant?, rhs, start, x, tolerance, most, jacobi?, iterations, residual, negative, threads,
//       team)
static PyObject* solve(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (n != 1 + OF_FIELDS + 11) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, found %zd", 1 + OF_FIELDS + 11, n);
        return nullptr;
    }
    Arguments take{args};
    const bool fine = take.number() ? read_and_solve<double>(take) : read_and_solve<float>(take);
    if (PyErr_Occurred()) return nullptr;
    if (!fine) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

template <class T> static void read_and_multiply(Arguments take) {
    const Fields<T> fields = read_fields<T>(take);
    const T* x = take.pointer<const T*>();
    T* out = take.pointer<T*>();
    const int threads = static_cast<int>(take.number());
    if (PyErr_Occurred()) return;
    Py_BEGIN_ALLOW_THREADS
    multiply_all<T>(fields, x, out, threads);
    Py_END_ALLOW_THREADS
}

// multiply(double?, ... as for solve ..., x, out, threads)
static PyObject* multiply(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (n != 1 + OF_FIELDS + 3) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, found %zd", 1 + OF_FIELDS + 3, n);
        return nullptr;
    }
    Arguments take{args};
    if (take.number())
        read_and_multiply<double>(take);
    else
        read_and_multiply<float>(take);
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"solve", reinterpret_cast<PyCFunction>(solve), METH_FASTCALL, "Conjugate gradients on systems of a batch."},
    {"multiply", reinterpret_cast<PyCFunction>(multiply), METH_FASTCALL, "Products with the matrices of a batch."},
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_fields", "Native kernels for Gaussian fields.", -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__fields() {
    PyObject* made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "MOST_DIRECTIONS", MOST_DIRECTIONS) < 0) {
        Py_DECREF(made);
        return nullptr;
    }
    return made;
}
