// Native kernels for Gaussian fields on grids and with low-rank couplings, as a module over plain pointers: the caller
// owns every buffer.
#include "../python/arguments.h"
#include "../python/module.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdlib>

#include "solve.h"
#include "woodbury.h"

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
    bool flat() const { return !constant && grid.width <= FLAT_WIDTH && !grid.directions.empty(); }
    // Whether the diagonal without the weights is positive in all systems.
    bool positive() const {
        const int64_t cells = varying_diagonal ? grid.cells : 1;
        for (int64_t example = 0; example < (diagonal_example ? examples : 1); ++example)
            for (int64_t channel = 0; channel < (diagonal_channel ? channels : 1); ++channel) {
                const T* here = diagonal + example * diagonal_example + channel * diagonal_channel;
                bool fine = true;
                for (int64_t i = 0; i < cells; ++i) fine &= here[i] > 0;
                if (!fine) return false;
            }
        return true;
    }
    Matrix<T> matrix(int64_t number, const T* zeros) const {
        const int64_t example = number / channels, channel = number % channels;
        return {&grid,
                diagonal + example * diagonal_example + channel * diagonal_channel,
                varying_diagonal,
                weights + example * weights_example,
                weights_direction,
                constant,
                zeros,
                nullptr};
    }
};

// What is asked of all systems, and where the answers go: fields [examples, channels, cells].
template <class T> struct Wanted {
    const T* rhs;
    const T* start;  // or null
    T* x;
    double tolerance;
    int64_t most;
    bool jacobi;
    Found* found;  // [examples, channels]
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
    Room(const Grid& grid, bool jacobi, bool flat) : memory_(size(grid, jacobi, flat)) {
        next_ = memory_.data();
        if (!next_) return;
        const int64_t beside = flat ? grid.reach : 0;
        sums_ = take<Sums>(2 * grid.pieces);
        vectors_.r = take<T>(grid.cells);
        vectors_.s = take<T>(grid.cells);
        vectors_.p = bordered(take<T>(grid.cells + 2 * beside), grid.cells, beside);
        vectors_.inverse = jacobi ? take<float>(grid.cells) : nullptr;
        vectors_.flat = flat ? take<T>(flat_size(grid)) : nullptr;
        if (flat)
            for (size_t d = 0; d < grid.directions.size(); ++d)
                bordered(vectors_.flat + d * (grid.cells + 2 * beside), grid.cells, beside);
    }
    bool fine() const { return memory_.data() != nullptr; }

    // Solve system `number` as one of a team that shares this room.  `holds` is the member's own note of whose diagonal
    // is inverted.
    void solve(const Fields<T>& fields, const Wanted<T>& wanted, const T* zeros, int64_t number, Member member,
               Matrix<T>& holds) const {
        const int64_t at = number * fields.grid.cells;
        const System<T> system{fields.matrix(number, zeros),
                               wanted.rhs + at,
                               wanted.start ? wanted.start + at : nullptr,
                               wanted.tolerance,
                               wanted.most,
                               wanted.jacobi};
        Vectors<T> vectors = vectors_;
        vectors.x = wanted.x + at;
        bool inverted = system.matrix.diagonal == holds.diagonal && system.matrix.weights == holds.weights;
        const Found found = Solver<T>(system, vectors, sums_, member).run(inverted);
        if (inverted) holds = system.matrix;
        if (member.rank) return;
        wanted.found[number] = found;
    }

  private:
    // Lines more than needed: arrays at equal distances from pages would compete for the same places in the cache.
    static size_t bytes(int64_t count, size_t size) { return round_up(count * size, 64) + 9 * 64; }
    static int64_t flat_size(const Grid& grid) {
        return static_cast<int64_t>(grid.directions.size()) * (grid.cells + 2 * grid.reach);
    }
    static size_t size(const Grid& grid, bool jacobi, bool flat) {
        return bytes(2 * grid.pieces, sizeof(Sums)) + 2 * bytes(grid.cells, sizeof(T)) +
               bytes(grid.cells + (flat ? 2 * grid.reach : 0), sizeof(T)) +
               (jacobi ? bytes(grid.cells, sizeof(float)) : 0) + (flat ? bytes(flat_size(grid), sizeof(T)) : 0);
    }
    template <class One> One* take(int64_t count) {
        One* here = reinterpret_cast<One*>(next_);
        next_ += bytes(count, sizeof(One));
        return here;
    }
    // The middle of an array, with zeros on either side.
    static T* bordered(T* array, int64_t count, int64_t beside) {
        std::fill(array, array + beside, T{});
        std::fill(array + beside + count, array + 2 * beside + count, T{});
        return array + beside;
    }
    char* next_;
    Memory memory_;
    Vectors<T> vectors_{};
    Sums* sums_;
};

// As many systems as threads at a time, each by one thread; the last ones by a team, where that is faster.  False when
// memory ran out.
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
            const Room<T> room(fields.grid, wanted.jacobi, fields.flat());
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
    const Room<T> room(fields.grid, wanted.jacobi, fields.flat());
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
        multiply_into<T>(fields.matrix(number, zeros.data()), x + at, out + at, k % pieces);
    }
}

}  // namespace energyml

using namespace energyml;

static constexpr Py_ssize_t OF_FIELDS = 15;

template <class T> static Fields<T> read_fields(Arguments& take) {
    const int64_t planes = take.number(), rows = take.number(), width = take.number();
    const auto* offsets = take.pointer<const int64_t>();
    const int64_t directions = take.number();
    if (PyErr_Occurred()) return {Grid(0, 0, 0, nullptr, 0), 0, 0, nullptr, 0, 0, false, nullptr, 0, 0, false};
    Fields<T> fields{Grid(planes, rows, width, offsets, directions),
                     take.number(),
                     take.number(),
                     take.pointer<const T>(),
                     take.number(),
                     take.number(),
                     take.number() != 0,
                     take.pointer<const T>(),
                     take.number(),
                     take.number(),
                     take.number() != 0};
    return fields;
}

template <class T> static bool read_and_solve(Arguments take, double& worst) {
    const Fields<T> fields = read_fields<T>(take);
    Wanted<T> wanted;
    wanted.rhs = take.pointer<const T>();
    wanted.start = take.pointer<const T>();
    wanted.x = take.pointer<T>();
    wanted.tolerance = take.real();
    wanted.most = take.number();
    wanted.jacobi = take.number() != 0;
    auto* const iterations = take.pointer<int64_t>();
    auto* const residual = take.pointer<double>();
    auto* const negative = take.pointer<uint8_t>();
    const int threads = static_cast<int>(take.number());
    const int team = static_cast<int>(take.number());
    const auto work = [&] {
        std::vector<Found> found(fields.count());
        wanted.found = found.data();
        if (!solve_all<T>(fields, wanted, threads, team)) throw std::bad_alloc();
        worst = fields.positive() ? 0.0 : std::numeric_limits<double>::quiet_NaN();
        for (int64_t example = 0; example < fields.examples; ++example) {
            Found most{0, 0.0, false};
            for (const Found* one = found.data() + example * fields.channels;
                 one < found.data() + (example + 1) * fields.channels; ++one) {
                most.iterations = std::max(most.iterations, one->iterations);
                most.residual = one->residual <= most.residual ? most.residual : one->residual;  // not a number stays
                most.negative |= one->negative;
            }
            iterations[example] = most.iterations;
            residual[example] = most.residual;
            negative[example] = most.negative;
            const double here = most.negative ? std::numeric_limits<double>::quiet_NaN() : most.residual;
            worst = here <= worst || std::isnan(worst) ? worst : here;
        }
    };
    return unlocked(work);
}

// solve(double?, planes, rows, width, offsets, directions, B, M, diagonal, diagonal_example, diagonal_channel,
// varying_diagonal?, weights,
//       weights_example, weights_direction, constant?, rhs, start, x, tolerance, most, jacobi?, iterations, residual,
//       negative, threads, team) -> the worst residual, NaN where something is not finite, a matrix not positive
//       definite, or the given diagonal not positive
static PyObject* solve(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 1 + OF_FIELDS + 11)) return nullptr;
    Arguments take{args};
    double worst = 0;
    const bool fine = take.number() ? read_and_solve<double>(take, worst) : read_and_solve<float>(take, worst);
    return fine ? PyFloat_FromDouble(worst) : nullptr;
}

template <class T> static bool read_and_multiply(Arguments take) {
    const Fields<T> fields = read_fields<T>(take);
    const T* x = take.pointer<const T>();
    T* out = take.pointer<T>();
    const int threads = static_cast<int>(take.number());
    return unlocked([&] { multiply_all<T>(fields, x, out, threads); });
}

// multiply(double?, ... as for solve ..., x, out, threads)
static PyObject* multiply(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 1 + OF_FIELDS + 3)) return nullptr;
    Arguments take{args};
    if (!(take.number() ? read_and_multiply<double>(take) : read_and_multiply<float>(take))) return nullptr;
    Py_RETURN_NONE;
}

static constexpr Py_ssize_t OF_LOW_RANK = 16;

template <class T> static LowRank<T> read_low_rank(Arguments& take) {
    return {take.number(),
            take.number(),
            take.number(),
            take.number(),
            take.pointer<const T>(),
            take.number() != 0,
            take.pointer<const T>(),
            take.number(),
            take.pointer<const T>(),
            take.number(),
            take.real(),
            take.real(),
            take.real(),
            take.real(),
            take.pointer<const uint8_t>(),
            static_cast<int>(take.number())};
}

template <class T> static bool read_and_couple(Arguments take, double& worst) {
    const LowRank<T> batch = read_low_rank<T>(take);
    const T* rhs = take.pointer<const T>();
    const Solutions<T> answer{take.pointer<T>(), take.pointer<double>(), take.pointer<uint8_t>(), take.pointer<T>()};
    return unlocked([&] { worst = woodbury_forward<T>(batch, rhs, answer); });
}

// couple(double?, B, M, N, K, vectors, shared?, ridge, ridge_stride, strength, strength_stride, gain, share, within,
// across, present, threads,
//        rhs, x, kept, definite, condition) -> the worst condition number, NaN where something is wrong
static PyObject* couple(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 1 + OF_LOW_RANK + 5)) return nullptr;
    Arguments take{args};
    double worst = 0;
    const bool fine = take.number() ? read_and_couple<double>(take, worst) : read_and_couple<float>(take, worst);
    return fine ? PyFloat_FromDouble(worst) : nullptr;
}

template <class T> static bool read_and_differentiate(Arguments take) {
    const LowRank<T> batch = read_low_rank<T>(take);
    const T *back = take.pointer<const T>(), *x = take.pointer<const T>();
    const double* kept = take.pointer<const double>();
    const Gradients<T> out{take.pointer<T>(), take.pointer<T>(), take.pointer<double>(), take.pointer<double>()};
    return unlocked([&] { woodbury_backward<T>(batch, back, x, kept, out); });
}

// couple_backward(double?, ... as for couple ..., back, x, kept, of_rhs, of_vectors, of_ridge, of_strength)
static PyObject* couple_backward(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 1 + OF_LOW_RANK + 7)) return nullptr;
    Arguments take{args};
    if (!(take.number() ? read_and_differentiate<double>(take) : read_and_differentiate<float>(take))) return nullptr;
    Py_RETURN_NONE;
}

// kept_size(K, M)
static PyObject* kept_size(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 2)) return nullptr;
    Arguments take{args};
    const int64_t rank = take.number(), channels = take.number();
    return PyErr_Occurred() ? nullptr : PyLong_FromLongLong(Capacities::size(rank, channels));
}

static PyMethodDef methods[] = {
    {"solve", FAST(solve), METH_FASTCALL, "Conjugate gradients on systems of a batch."},
    {"multiply", FAST(multiply), METH_FASTCALL, "Products with the matrices of a batch."},
    {"couple", FAST(couple), METH_FASTCALL, "Solves with low-rank couplings of a batch."},
    {"couple_backward", FAST(couple_backward), METH_FASTCALL, "The gradients of `couple`."},
    {"kept_size", FAST(kept_size), METH_FASTCALL, "Numbers that `couple` keeps for an example."},
    {nullptr, nullptr, 0, nullptr}};

static const Constant constants[] = {{"MOST_DIRECTIONS", MOST_DIRECTIONS}, {nullptr, 0}};

DEFINE_MODULE(methods, constants, "Gaussian fields on grids and with low-rank couplings.")
