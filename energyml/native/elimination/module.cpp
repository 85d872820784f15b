// Native kernels for factor graphs, as a module over plain pointers: the caller owns every buffer.
#include "../python/arguments.h"
#include "../python/module.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <memory>

#include "products.h"
#include "programs.h"

namespace energyml {

// What a call wants; null pointers for what it does not.
struct Wanted {
    bool maximise;
    bool products;        // whether sums may be taken in exp space
    const int64_t* rows;  // the examples
    int64_t count;
    const double* const* tables;
    const int64_t* example_strides;
    int64_t table_count;
    const int64_t* labels;  // [count, known]
    double* log_z;          // [count]
    const double* weights;  // [count]: null without gradients
    double* const* gradients;
    const int64_t* gradient_strides;
    const int64_t* thread_strides;
    double* entropy;         // [count]
    const double* uniforms;  // [count, draws, steps]
    int64_t* drawn;          // [count, draws, cells]
    int64_t draws;
    int64_t sums;     // how many steps sum; the others maximise
    int64_t counted;  // the first step whose cell counts for the entropy
};

// Room for messages that a thread keeps from call to call: fresh pages cost more than the work on them.  Large ones are
// given back.
class Workspace {
  public:
    ~Workspace() { std::free(data_); }
    double* reserve(size_t count) {
        if (count > size_) {
            std::free(data_);
            data_ = allocate(count * sizeof(double));
            size_ = data_ ? count : 0;
        }
        return data_;
    }
    void settle() {
        if (size_ <= RETAINED) return;
        std::free(data_);
        data_ = nullptr;
        size_ = 0;
    }

  private:
    // Large room in large pages where the system has them: touching it for the first time is then hundreds of times
    // cheaper.
    static double* allocate(size_t bytes) {
#ifdef __linux__
        constexpr size_t page = size_t{1} << 21;
        if (bytes >= 2 * page) {
            const size_t whole = (bytes + page - 1) / page * page;
            void* room = std::aligned_alloc(page, whole);
            if (room) madvise(room, whole, MADV_HUGEPAGE);
            return static_cast<double*>(room);
        }
        return static_cast<double*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
#endif
        return static_cast<double*>(std::malloc(bytes));
    }

    static constexpr size_t RETAINED = size_t{1} << 25;  // 256 MB
    double* data_ = nullptr;
    size_t size_ = 0;
};

static void prepare_gradients(const Graph& graph, const Wanted& wanted, int64_t example, int thread, Tables& tables,
                              double* workspace) {
    tables.shares = workspace + graph.room + graph.workspace + PADDING;
    for (int64_t k = 0; k < wanted.table_count; ++k)
        tables.gradients.push_back(wanted.gradients[k] ? wanted.gradients[k] + example * wanted.gradient_strides[k] +
                                                             thread * wanted.thread_strides[k]
                                                       : nullptr);
}

template <bool MAX>
inline void run(const Graph& graph, const Wanted& wanted, int64_t number, int thread, double* workspace, Room& room,
                bool& shared) {
    const int64_t example = wanted.rows[number];
    Tables tables;
    tables.room = workspace;
    tables.messages = workspace + graph.room;
    tables.shares = nullptr;
    tables.labels = wanted.labels + number * graph.known;
    tables.values.reserve(static_cast<size_t>(wanted.table_count));
    for (int64_t k = 0; k < wanted.table_count; ++k)
        tables.values.push_back(wanted.tables[k] ? wanted.tables[k] + example * wanted.example_strides[k] : nullptr);
    if (!MAX && wanted.products && !wanted.drawn) {
        // The way of products says nothing of entropies; what spreads too far for it starts again in log space.
        ProductPass pass(graph, tables, room, wanted.example_strides, shared);
        if (pass.up(wanted.log_z[number])) {
            if (!wanted.weights) return;
            prepare_gradients(graph, wanted, example, thread, tables, workspace);
            if (wanted.log_z[number] > NOTHING) pass.down(wanted.weights[number]);
            return;
        }
    }
    sweep_up(graph, tables, wanted.sums, room);
    const double total = wanted.log_z[number] = total_of(graph, tables);
    if (wanted.drawn)
        for (int64_t d = 0; d < wanted.draws; ++d) {
            const int64_t place = number * wanted.draws + d;
            const double* uniform = MAX ? nullptr : wanted.uniforms + place * static_cast<int64_t>(graph.steps.size());
            walk<MAX>(graph, tables, MAX ? wanted.sums : 0, uniform, wanted.drawn + place * graph.cells, room.block);
        }
    if (!wanted.weights) return;
    prepare_gradients(graph, wanted, example, thread, tables, workspace);
    const double weight = MAX ? total : total > NOTHING ? wanted.weights[number] : 0.0;
    const double entropy = sweep_down<MAX>(graph, tables, weight, MAX ? wanted.sums : 0, wanted.counted, room);
    if (wanted.entropy) wanted.entropy[number] = entropy;
}

inline void run_sum(const Graph& graph, const Wanted& wanted, int64_t number, int thread, double* workspace, Room& room,
                    bool& shared) {
    run<false>(graph, wanted, number, thread, workspace, room, shared);
}
inline void run_max(const Graph& graph, const Wanted& wanted, int64_t number, int thread, double* workspace, Room& room,
                    bool& shared) {
    run<true>(graph, wanted, number, thread, workspace, room, shared);
}

// The examples of a call that are one thread's: all of them, or those that it gets to first.
static bool eliminate_own(const Graph& graph, const Wanted& wanted, int thread, bool alone) {
    static thread_local Workspace messages;
    static thread_local Room room;
    double* workspace =
        messages.reserve(static_cast<size_t>(graph.room + (graph.workspace + PADDING) * (wanted.weights ? 2 : 1)));
    bool fine = workspace != nullptr;
    bool shared = false;  // whether exponentials of what all examples share are in the workspace
    const auto one = [&](int64_t number) {
        if (fine)
            fine = memory_suffices(
                [&] { (wanted.maximise ? run_max : run_sum)(graph, wanted, number, thread, workspace, room, shared); });
    };
    if (alone) {
        for (int64_t number = 0; number < wanted.count; ++number) one(number);
    } else {
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
        for (int64_t number = 0; number < wanted.count; ++number) one(number);
    }
    messages.settle();
    room.settle();
    return fine;
}

static void eliminate_all(const Graph& graph, const Wanted& wanted, int threads) {
    bool fine = true;
    if (threads == 1) {
        fine = eliminate_own(graph, wanted, 0, true);
    } else {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) reduction(&& : fine)
        fine = eliminate_own(graph, wanted, omp_get_thread_num(), false);
#else
        fine = eliminate_own(graph, wanted, 0, true);
#endif
    }
    if (!fine) throw std::bad_alloc();
}

// How an order is looked for: find(graph, limit, ties, order) gives the width, or -1 where it is above the limit.
struct Search {
    int64_t (*find)(const Scopes&, double, int64_t, int64_t*);
    double limit;
    int64_t ties;
    int64_t run(const Scopes& graph, int64_t* order) const { return find(graph, limit, ties, order); }
};

static Search read_search(Arguments& take) {
    constexpr int64_t (*searches[])(const Scopes&, double, int64_t, int64_t*) = {min_weight, min_fill, natural};
    const int64_t method = take.number();
    const double limit = take.real();
    return {searches[method], limit, take.number()};
}

static constexpr const char* PROGRAM = "energyml.program";

static void forget_program(PyObject* capsule) { delete static_cast<Graph*>(PyCapsule_GetPointer(capsule, PROGRAM)); }

}  // namespace energyml

using namespace energyml;

static constexpr Py_ssize_t SCOPES = 6;  // arguments that make a `Scopes`

static Scopes read_scopes(Arguments& take) {
    Scopes graph;
    graph.cells = take.number();
    graph.factors = take.number();
    graph.members = take.pointer<const int64_t>();
    graph.starts = take.pointer<const int64_t>();
    graph.sizes = take.pointer<const int64_t>();
    graph.marks = take.pointer<const uint8_t>();
    return graph;
}

static PyObject* described(const Compiled& made) {
    const auto* bytes = reinterpret_cast<const char*>(made.numbers.data());
    return Py_BuildValue("y#Ldd", bytes, static_cast<Py_ssize_t>(made.numbers.size() * sizeof(int64_t)),
                         static_cast<long long>(made.width), made.operations, made.entries);
}

// search_order(cells, factors, members, starts, sizes, marks, method, limit, ties, order) -> the width, or -1 when
// above the limit
static PyObject* search_order(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, SCOPES + 4)) return nullptr;
    Arguments take{args};
    Scopes graph = read_scopes(take);
    const Search search = read_search(take);
    auto* order = take.pointer<int64_t>();
    int64_t width = 0;
    const auto work = [&] {
        graph.weigh();
        width = search.run(graph, order);
    };
    return unlocked(work) ? PyLong_FromLongLong(width) : nullptr;
}

// plan_order(cells, factors, members, starts, sizes, marks, method, limit, ties) -> as compile_order for the order that
// is found; None when it is above the limit
static PyObject* plan_order(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, SCOPES + 3)) return nullptr;
    Arguments take{args};
    Scopes graph = read_scopes(take);
    const Search search = read_search(take);
    Compiled made;
    bool found = false;
    const auto work = [&] {
        graph.weigh();
        made.order.resize(static_cast<size_t>(graph.cells));
        found = search.run(graph, made.order.data()) >= 0;
        if (!found) return;
        made.order.resize(static_cast<size_t>(
            std::count_if(graph.marks, graph.marks + graph.cells, [](uint8_t mark) { return !(mark & 1); })));
        compile_order(graph, made);
    };
    if (!unlocked(work)) return nullptr;
    if (!found) Py_RETURN_NONE;
    return described(made);
}

// compile_order(cells, factors, members, starts, sizes, marks, order, steps) -> (numbers, width, operations, entries)
static PyObject* compile_program(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, SCOPES + 2)) return nullptr;
    Arguments take{args};
    const Scopes graph = read_scopes(take);
    const auto* order = take.pointer<const int64_t>();
    const int64_t steps = take.number();
    Compiled made;
    const auto work = [&] {
        made.order.assign(order, order + steps);
        compile_order(graph, made);
    };
    return unlocked(work) ? described(made) : nullptr;
}

static PyObject* as_bytes(const std::vector<int64_t>& numbers) {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers.data()),
                                     static_cast<Py_ssize_t>(numbers.size() * sizeof(int64_t)));
}

// gather_factors(cells, places) -> members, starts, sources, elements as bytes; places: a tuple of arrays [elements,
// arity], or of pairs of numbers for tables with one element for each cell from the first to before the second
static PyObject* gather_factors(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 2)) return nullptr;
    const int64_t cells = PyLong_AsLongLong(args[0]);
    std::vector<Places> tables;
    for (Py_ssize_t k = 0; k < PyTuple_Size(args[1]); ++k) {
        PyObject* one = PyTuple_GET_ITEM(args[1], k);
        if (PyTuple_Check(one)) {
            const std::vector<int64_t> span = numbers_of(one);
            if (span.size() != 2) return PyErr_Format(PyExc_TypeError, "expected a first and a last cell");
            tables.push_back({nullptr, span[1] - span[0], 1, span[0]});
            continue;
        }
        Py_buffer lent;
        if (PyObject_GetBuffer(one, &lent, PyBUF_ND)) return nullptr;
        tables.push_back({static_cast<const int64_t*>(lent.buf), lent.shape[0], lent.shape[1], 0});
        PyBuffer_Release(&lent);
    }
    std::unique_ptr<Gathered> made;
    if (!unlocked([&] { made = std::make_unique<Gathered>(tables, cells); })) return nullptr;
    return Py_BuildValue("NNNN", as_bytes(made->members), as_bytes(made->starts), as_bytes(made->sources),
                         as_bytes(made->elements));
}

// read_program(cells, factors, members, starts, sizes, marks, sources, elements, shapes, domains, arities, known,
// known_count, numbers) -> a program that `eliminate` runs; shapes: of tables without their batch axis, None where
// there is no table
static PyObject* read_program(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, SCOPES + 8)) return nullptr;
    Arguments take{args};
    const Scopes graph = read_scopes(take);
    Layout layout;
    layout.sources = take.pointer<const int64_t>();
    layout.elements = take.pointer<const int64_t>();
    PyObject *shapes = *take.next++, *domains = *take.next++;
    const std::vector<int64_t> arities = numbers_of(*take.next++);
    for (size_t k = 0; k < arities.size(); ++k) {
        PyObject *shape = PyTuple_GetItem(shapes, static_cast<Py_ssize_t>(k)),
                 *domain = PyTuple_GetItem(domains, static_cast<Py_ssize_t>(k));
        if (!shape || !domain) return nullptr;
        const bool given = shape != Py_None;
        const std::vector<int64_t> index = numbers_of(domain), sizes = given ? numbers_of(shape) : index;
        if (PyErr_Occurred()) return nullptr;
        if (given && sizes.size() != index.size() + static_cast<size_t>(arities[k]))
            return PyErr_Format(PyExc_ValueError, "expected an axis for each index and each cell of table %zd",
                                static_cast<Py_ssize_t>(k));
        layout.add(index, arities[k], given ? &sizes : nullptr);
    }
    layout.known = take.pointer<const int64_t>();
    layout.known_count = take.number();
    const auto* numbers = take.pointer<const int64_t>();
    Graph* program = nullptr;
    if (!unlocked([&] { program = new Graph(Assembly(graph, layout).read(numbers)); })) return nullptr;
    return PyCapsule_New(program, PROGRAM, forget_program);
}

// eliminate(maximise, products, sums, counted, program, rows, count, tables, example_strides, table_count, labels,
// log_z, weights, gradients,
//           gradient_strides, thread_strides, entropy, uniforms, drawn, draws, threads)
static PyObject* eliminate(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 21)) return nullptr;
    Arguments take{args};
    Wanted wanted;
    wanted.maximise = take.number() != 0;
    wanted.products = take.number() != 0;
    wanted.sums = take.number();
    wanted.counted = take.number();
    auto* graph = static_cast<Graph*>(PyCapsule_GetPointer(*take.next++, PROGRAM));
    if (!graph) return nullptr;
    wanted.rows = take.pointer<const int64_t>();
    wanted.count = take.number();
    wanted.tables = take.pointer<const double* const>();
    wanted.example_strides = take.pointer<const int64_t>();
    wanted.table_count = take.number();
    wanted.labels = take.pointer<const int64_t>();
    wanted.log_z = take.pointer<double>();
    wanted.weights = take.pointer<const double>();
    wanted.gradients = take.pointer<double* const>();
    wanted.gradient_strides = take.pointer<const int64_t>();
    wanted.thread_strides = take.pointer<const int64_t>();
    wanted.entropy = take.pointer<double>();
    wanted.uniforms = take.pointer<const double>();
    wanted.drawn = take.pointer<int64_t>();
    wanted.draws = take.number();
    const int threads = static_cast<int>(take.number());
    if (wanted.weights && wanted.products && !memory_suffices([&] { graph->find_returns(); })) return PyErr_NoMemory();
    if (!unlocked([&] { eliminate_all(*graph, wanted, threads); })) return nullptr;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"search_order", FAST(search_order), METH_FASTCALL, "An elimination order."},
    {"plan_order", FAST(plan_order), METH_FASTCALL, "An elimination order's program, as compile_order gives it."},
    {"compile_order", FAST(compile_program), METH_FASTCALL, "The numbers of an order's program, and its costs."},
    {"gather_factors", FAST(gather_factors), METH_FASTCALL,
     "The factors of a graph from the cells of its tables' elements."},
    {"read_program", FAST(read_program), METH_FASTCALL, "A program from its numbers."},
    {"eliminate", FAST(eliminate), METH_FASTCALL, "Run an elimination program on a batch of examples."},
    {nullptr, nullptr, 0, nullptr}};

static const Constant constants[] = {{nullptr, 0}};

DEFINE_MODULE(methods, constants, "Elimination in factor graphs.")
