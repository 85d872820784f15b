// Native kernels for factor graphs, as a module over plain pointers: the caller owns every buffer.
#include "calls.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdlib>

#include "best_forest.h"
#include "products.h"
#include "programs.h"
#include "scaled_forest.h"

namespace energyml {

// What a call wants; null pointers for what it does not.
struct Wanted {
    bool maximise;
    bool products;  // whether sums may be taken in exp space
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

// Room for messages that a thread keeps from call to call: fresh pages cost more than the work on them.  Large ones are given back.
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
    // Large room in large pages where the system has them: touching it for the first time is then hundreds of times cheaper.
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

static void prepare_gradients(const Graph& graph, const Wanted& wanted, int64_t example, int thread, Tables& tables, double* workspace) {
    tables.shares = workspace + graph.room + graph.workspace + PADDING;
    for (int64_t k = 0; k < wanted.table_count; ++k)
        tables.gradients.push_back(
            wanted.gradients[k] ? wanted.gradients[k] + example * wanted.gradient_strides[k] + thread * wanted.thread_strides[k] : nullptr);
}

template <bool MAX>
INLINE void run(const Graph& graph, const Wanted& wanted, int64_t number, int thread, double* workspace, Room& room, bool& shared) {
    const int64_t example = wanted.rows[number];
    Tables tables;
    tables.room = workspace;
    tables.messages = workspace + graph.room;
    tables.shares = nullptr;
    tables.labels = wanted.labels + number * graph.known;
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

DISPATCH void run_sum(const Graph& graph, const Wanted& wanted, int64_t number, int thread, double* workspace, Room& room, bool& shared) {
    run<false>(graph, wanted, number, thread, workspace, room, shared);
}
DISPATCH void run_max(const Graph& graph, const Wanted& wanted, int64_t number, int thread, double* workspace, Room& room, bool& shared) {
    run<true>(graph, wanted, number, thread, workspace, room, shared);
}

// The examples of a call that are one thread's: all of them, or those that it gets to first.
static bool eliminate_own(const Graph& graph, const Wanted& wanted, int thread, bool alone) {
    static thread_local Workspace messages;
    static thread_local Room room;
    double* workspace = messages.reserve(static_cast<size_t>(graph.room + (graph.workspace + PADDING) * (wanted.weights ? 2 : 1)));
    bool fine = workspace != nullptr;
    bool shared = false;  // whether exponentials of what all examples share are in the workspace
    const auto one = [&](int64_t number) {
        if (fine) fine = memory_suffices([&] { (wanted.maximise ? run_max : run_sum)(graph, wanted, number, thread, workspace, room, shared); });
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

// What a call on trees wants; null pointers for what it does not.
template <class T> struct Trees {
    Forest forest;
    int64_t batch;
    const T* unary;  // [B, nodes, labels]
    const T* pair;
    int64_t example_stride, edge_stride;  // of the pair table: 0 where it is shared
    double* log_z;                        // [B]
    const double* weights;                // [B]
    T* unary_gradient;
    T* pair_gradient;  // [B or threads, edges or 1, labels, labels]
    int64_t gradient_stride;
    T* apart;        // [threads, labels, labels]: the safe way's share of the gradient of a table that all edges share
    int64_t* labels;  // [B, nodes]
    const int64_t* answers;  // [B, nodes]: log-probabilities of these are wanted in place of log Z, not a number where one is no label

    bool shared() const { return !example_stride && !edge_stride; }
};

// What a thread needs while it works on its examples.
template <class T> struct TreeRoom {
    std::vector<T> state, some;
    std::vector<uint8_t> received;
    std::vector<double> safe;
};

template <class T> INLINE void sum_tree(const Trees<T>& trees, int64_t example, int thread, const Exponentials<T>* shared, TreeRoom<T>& room) {
    const int64_t cells = trees.forest.nodes * trees.forest.labels, table = trees.forest.labels * trees.forest.labels;
    const T* unary = trees.unary + example * cells;
    const T* pair = trees.pair + example * trees.example_stride;
    const int64_t gradient_step = trees.edge_stride ? table : 0;
    T* gradient = trees.pair_gradient ? trees.pair_gradient + (trees.example_stride ? example : thread) * trees.gradient_stride : nullptr;
    T* const safe_gradient = gradient && trees.apart ? trees.apart + thread * table : gradient;
    T* const unary_gradient = trees.unary_gradient + example * cells;
    const bool back = trees.weights != nullptr;
    const double weight = back ? trees.weights[example] : 0;
    const auto sum = [&](double by) __attribute__((always_inline)) {  // log Z, and its gradient times this
        bool safe = !shared || shared->narrow;
        double log_z = NOTHING;
        if (safe) {
            ScaledTree<T> fast(trees.forest, example, unary, pair, trees.edge_stride, shared, room.state.data(), room.received.data());
            log_z = fast.up(safe);
            if (safe && back && log_z > NOTHING) fast.down(by, unary_gradient, gradient, gradient_step, room.some);
        }
        if (safe) return log_z;
        TreePass<T> slow(trees.forest, example, unary, pair, trees.edge_stride);
        log_z = slow.up(room.safe);
        if (back && log_z > NOTHING) slow.down(by, unary_gradient, safe_gradient, gradient_step);
        return log_z;
    };
    double& value = trees.log_z[example];
    if (!trees.answers) {
        value = sum(weight);
        return;
    }
    const TreeAnswer<T> answer{{trees.forest, example}, trees.forest.labels, trees.answers + example * trees.forest.nodes};
    value = answer.exists() ? answer.score(unary, pair, trees.edge_stride) : std::numeric_limits<double>::quiet_NaN();
    if (!(value > NOTHING)) return;
    value -= sum(-weight);
    if (back) answer.add(static_cast<T>(weight), unary_gradient, safe_gradient, gradient_step);
}

template <class T>
INLINE void sum_trees(const Trees<T>& trees, int64_t first, int64_t last, int thread, const Exponentials<T>* shared) {
    TreeRoom<T> room;
    room.received.resize(static_cast<size_t>(trees.forest.nodes));
    room.state.resize(static_cast<size_t>(2 * trees.forest.nodes * round_up(trees.forest.labels, Lanes<T>::count)) + 16);
    for (int64_t example = first; example < last; ++example) sum_tree<T>(trees, example, thread, shared, room);
}

template <class T> INLINE void best_trees(const Trees<T>& trees, int64_t first, int64_t last, const Padded<T>* shared) {
    std::vector<T> room;
    const int64_t cells = trees.forest.nodes * trees.forest.labels;
    for (int64_t example = first; example < last; ++example) {
        BestTree<T> tree(trees.forest, example, trees.unary + example * cells, trees.pair + example * trees.example_stride, trees.edge_stride, shared);
        trees.log_z[example] = tree.run(room, trees.labels + example * trees.forest.nodes);
    }
}

#define TREES_OF(T, NAME)                                                                                                          \
    DISPATCH void sum_##NAME(const Trees<T>& trees, int64_t first, int64_t last, int thread, const Exponentials<T>* shared) {    \
        sum_trees<T>(trees, first, last, thread, shared);                                                                          \
    }                                                                                                                              \
    DISPATCH void best_##NAME(const Trees<T>& trees, int64_t first, int64_t last, const Padded<T>* shared) {                      \
        best_trees<T>(trees, first, last, shared);                                                                                 \
    }                                                                                                                              \
    DISPATCH void exponentials_##NAME(const T* pair, int64_t labels, int64_t padded, Exponentials<T>& out) { out.take(pair, labels, padded); }

TREES_OF(float, f32)
TREES_OF(double, f64)

template <class T> struct ForTrees;
template <> struct ForTrees<float> {
    static constexpr auto sum = sum_f32;
    static constexpr auto best = best_f32;
    static constexpr auto exponentials = exponentials_f32;
};
template <> struct ForTrees<double> {
    static constexpr auto sum = sum_f64;
    static constexpr auto best = best_f64;
    static constexpr auto exponentials = exponentials_f64;
};

template <class T> static void sweep_trees(const Trees<T>& trees, int threads) {
    const int64_t labels = trees.forest.labels, padded = round_up(labels, Lanes<T>::count), table = labels * labels;
    const int64_t each = (trees.batch + threads - 1) / threads;
    Exponentials<T> exponentials;
    Padded<T> scores;
    if (trees.shared() && trees.labels) scores.take(trees.pair, labels, padded);
    if (trees.shared() && !trees.labels) ForTrees<T>::exponentials(trees.pair, labels, padded, exponentials);
    bool fine = true;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(&& : fine)
#endif
    for (int thread = 0; thread < threads; ++thread) {
        const int64_t first = thread * each, last = std::min(trees.batch, (thread + 1) * each);
        const auto work = [&] {
            if (trees.labels)
                ForTrees<T>::best(trees, first, last, trees.shared() ? &scores : nullptr);
            else
                ForTrees<T>::sum(trees, first, last, thread, trees.shared() ? &exponentials : nullptr);
        };
        fine = memory_suffices(work) && fine;
    }
    if (!fine) throw std::bad_alloc();
    if (!trees.shared() || !trees.pair_gradient) return;
    for (int64_t thread = 0; thread < threads; ++thread)
        for (int64_t i = 0; i < labels; ++i)
            for (int64_t j = 0; j < labels; ++j) {
                T& to = trees.pair_gradient[thread * trees.gradient_stride + i * labels + j];
                to = to * exponentials.rows[0][i * padded + j] + trees.apart[thread * table + i * labels + j];
            }
}

static constexpr const char* PROGRAM = "energyml.program";

}  // namespace energyml

#include "question.h"

using namespace energyml;

static void forget_program(PyObject* capsule) { delete static_cast<Graph*>(PyCapsule_GetPointer(capsule, PROGRAM)); }

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

// How an order is looked for: search(graph, limit, ties, order) gives the width, or -1 when above the limit.
struct Search {
    int64_t (*find)(const Scopes&, double, int64_t, int64_t*);
    double limit;
    int64_t ties;
};

static Search read_search(Arguments& take) {
    constexpr int64_t (*searches[])(const Scopes&, double, int64_t, int64_t*) = {min_weight, min_fill, natural};
    const int64_t method = take.number();
    const double limit = take.real();
    return {searches[method], limit, take.number()};
}

static PyObject* described(const Compiled& made) {
    const auto* bytes = reinterpret_cast<const char*>(made.numbers.data());
    return Py_BuildValue("y#Ldd", bytes, static_cast<Py_ssize_t>(made.numbers.size() * sizeof(int64_t)), static_cast<long long>(made.width),
                         made.operations, made.entries);
}

// search_order(cells, factors, members, starts, sizes, marks, method, limit, ties, order) -> the width, or -1 when above the limit
static PyObject* search_order(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, SCOPES + 4)) return nullptr;
    Arguments take{args};
    Scopes graph = read_scopes(take);
    const Search search = read_search(take);
    auto* order = take.pointer<int64_t>();
    int64_t width = 0;
    const auto work = [&] {
        graph.weigh();
        width = search.find(graph, search.limit, search.ties, order);
    };
    return unlocked(work) ? PyLong_FromLongLong(width) : nullptr;
}

// plan_order(cells, factors, members, starts, sizes, marks, method, limit, ties) -> as compile_order for the order that is found; None when it
// is above the limit
static PyObject* plan_order(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, SCOPES + 3)) return nullptr;
    Arguments take{args};
    Scopes graph = read_scopes(take);
    const Search search = read_search(take);
    Compiled made;
    bool found = false;
    const auto work = [&] {
        graph.weigh();
        std::vector<int64_t> order(static_cast<size_t>(graph.cells));
        found = search.find(graph, search.limit, search.ties, order.data()) >= 0;
        const int64_t steps = std::count_if(graph.marks, graph.marks + graph.cells, [](uint8_t mark) { return !(mark & 1); });
        if (found) made = compile_order(graph, order.data(), steps);
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
    return unlocked([&] { made = compile_order(graph, order, steps); }) ? described(made) : nullptr;
}

// gather_factors(cells, places, members, starts, sources, elements) -> how many factors there are; places: a tuple of arrays [elements, arity]
static PyObject* gather_factors(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 6)) return nullptr;
    Arguments take{args};
    const int64_t cells = take.number();
    PyObject* places = *take.next++;
    std::vector<Places> tables;
    for (Py_ssize_t k = 0; k < PyTuple_Size(places); ++k) {
        Py_buffer lent;
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(places, k), &lent, PyBUF_ND)) return nullptr;
        tables.push_back({static_cast<const int64_t*>(lent.buf), lent.shape[0], lent.shape[1]});
        PyBuffer_Release(&lent);
    }
    Gathered made;
    made.members = take.pointer<int64_t>();
    made.starts = take.pointer<int64_t>();
    made.sources = take.pointer<int64_t>();
    made.elements = take.pointer<int64_t>();
    int64_t factors = 0;
    return unlocked([&] { factors = made.take(tables, cells); }) ? PyLong_FromLongLong(factors) : nullptr;
}

// read_program(cells, factors, members, starts, sizes, marks, sources, elements, tables, count, known, known_count, numbers) -> a program
// that `eliminate` runs
static PyObject* read_program(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, SCOPES + 7)) return nullptr;
    Arguments take{args};
    const Scopes graph = read_scopes(take);
    Layout layout;
    layout.sources = take.pointer<const int64_t>();
    layout.elements = take.pointer<const int64_t>();
    layout.tables = take.pointer<const int64_t>();
    layout.count = take.number();
    layout.known = take.pointer<const int64_t>();
    layout.known_count = take.number();
    const auto* numbers = take.pointer<const int64_t>();
    Graph* program = nullptr;
    if (!unlocked([&] { program = new Graph(Assembly(graph, layout).read(numbers)); })) return nullptr;
    return PyCapsule_New(program, PROGRAM, forget_program);
}

// eliminate(maximise, products, sums, counted, program, rows, count, tables, example_strides, table_count, labels, log_z, weights, gradients,
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

// order_forest(B, nodes, edges, ends, exists, parent, edge, order, height, swapped, count) -> examples whose edges make a cycle
static PyObject* order_forests(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 11)) return nullptr;
    Arguments take{args};
    const int64_t batch = take.number(), nodes = take.number(), edges = take.number();
    const auto* ends = take.pointer<const int64_t>();
    const auto* exists = take.pointer<const uint8_t>();
    auto* parent = take.pointer<int64_t>();
    auto* edge = take.pointer<int64_t>();
    auto* order = take.pointer<int64_t>();
    auto* height = take.pointer<int64_t>();
    auto* swapped = take.pointer<uint8_t>();
    auto* count = take.pointer<int64_t>();
    int64_t cyclic = 0;
    const auto work = [&] {
        Rooting room;
        for (int64_t b = 0; b < batch; ++b) {
            const int64_t at = b * nodes;
            cyclic += !order_forest(nodes, edges, ends + b * edges * 2, exists + at, parent + at, edge + at, order + at, height + at, swapped + at, count + b, room);
        }
    };
    return unlocked(work) ? PyLong_FromLongLong(cyclic) : nullptr;
}

template <class T> static bool read_and_sweep(Arguments take) {
    Trees<T> trees;
    trees.batch = take.number();
    trees.forest.nodes = take.number();
    trees.forest.labels = take.number();
    trees.forest.parent = take.pointer<const int64_t>();
    trees.forest.edge = take.pointer<const int64_t>();
    trees.forest.order = take.pointer<const int64_t>();
    trees.forest.height = take.pointer<const int64_t>();
    trees.forest.swapped = take.pointer<const uint8_t>();
    trees.forest.count = take.pointer<const int64_t>();
    trees.unary = take.pointer<const T>();
    trees.pair = take.pointer<const T>();
    trees.example_stride = take.number();
    trees.edge_stride = take.number();
    trees.log_z = take.pointer<double>();
    trees.weights = take.pointer<const double>();
    trees.unary_gradient = take.pointer<T>();
    trees.pair_gradient = take.pointer<T>();
    trees.gradient_stride = take.number();
    trees.apart = take.pointer<T>();
    trees.labels = take.pointer<int64_t>();
    trees.answers = take.pointer<const int64_t>();
    const int threads = static_cast<int>(take.number());
    return unlocked([&] { sweep_trees<T>(trees, threads); });
}

// sweep_forest(double?, B, nodes, labels, parent, edge, order, height, swapped, count, unary, pair, example_stride, edge_stride, log_z,
//              weights, unary_gradient, pair_gradient, gradient_stride, apart, labels, answers, threads)
static PyObject* sweep_forest(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 23)) return nullptr;
    Arguments take{args};
    if (!(take.number() ? read_and_sweep<double>(take) : read_and_sweep<float>(take))) return nullptr;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"search_order", reinterpret_cast<PyCFunction>(search_order), METH_FASTCALL, "An elimination order."},
    {"plan_order", reinterpret_cast<PyCFunction>(plan_order), METH_FASTCALL, "An elimination order's program, as compile_order gives it."},
    {"compile_order", reinterpret_cast<PyCFunction>(compile_program), METH_FASTCALL, "The numbers of an order's program, and its costs."},
    {"gather_factors", reinterpret_cast<PyCFunction>(gather_factors), METH_FASTCALL, "The factors of a graph from the cells of its tables' elements."},
    {"read_program", reinterpret_cast<PyCFunction>(read_program), METH_FASTCALL, "A program from its numbers."},
    {"order_forest", reinterpret_cast<PyCFunction>(order_forests), METH_FASTCALL, "Parents and an order of the nodes of trees."},
    {"sweep_forest", reinterpret_cast<PyCFunction>(sweep_forest), METH_FASTCALL, "Messages along trees, and back."},
    {"introduce", reinterpret_cast<PyCFunction>(introduce), METH_FASTCALL, "Tell the module about torch."},
    {"make_question", reinterpret_cast<PyCFunction>(make_question), METH_FASTCALL, "A question about tensors as they are."},
    {"ask", reinterpret_cast<PyCFunction>(ask), METH_FASTCALL, "Answer a question."},
    {"eliminate", reinterpret_cast<PyCFunction>(eliminate), METH_FASTCALL, "Run an elimination program on a batch of examples."},
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_graphs", "Native kernels for factor graphs.", -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__graphs() { return PyModule_Create(&module); }
