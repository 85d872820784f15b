// Native Gibbs sweeps, as a module over plain pointers: the caller owns every buffer.
#include "../python/arguments.h"
#include "../python/module.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <memory>

#include "tables.h"

namespace energyml {

// Tasks of a call: groups of chains of a row, the same for any number of threads in what they draw.
struct Tasks {
    int64_t rows, chains, beside;

    // As many chains to a task as there is room for, but enough tasks for all threads.
    Tasks(const Places& places, int64_t most, int64_t unit, int threads) : rows(places.rows), chains(places.chains) {
        const int64_t groups = std::max<int64_t>(1, (threads + rows - 1) / std::max<int64_t>(1, rows));
        beside = std::min(most, round_up(std::max<int64_t>(1, (chains + groups - 1) / groups), unit));
    }
    int64_t each() const { return (chains + beside - 1) / beside; }
    int64_t count() const { return rows * each(); }
    int64_t row(int64_t task) const { return task / each(); }
    int64_t first(int64_t task) const { return task % each() * beside; }
    int64_t size(int64_t task) const { return std::min(beside, chains - first(task)); }
};

// What a thread works in; made before the threads start, as memory may run out.
template <class T> struct PairRoom {
    Buffer<uint32_t> words, planes, wanted, novel;
    Buffer<T> beta, partial;
    Buffer<double> score, chance;

    PairRoom(const Places& places, const Pairs<T>&, const Request& request)
        : words(places.cells * WIDTH),
          planes(places.cells * WIDTH),
          wanted(request.chance ? places.cells * WIDTH : 0),
          novel(places.joined * MOST_CHAINS),
          beta(MOST_CHAINS),
          partial(MOST_CHAINS),
          score(places.joined * MOST_CHAINS),
          chance(places.joined * MOST_CHAINS) {}
    PairSweep<T> sweep(const Places& places, const Pairs<T>& graph, const Request& request, const Tasks& tasks,
                       int64_t task) const {
        return {places,
                graph,
                request,
                tasks.row(task),
                tasks.first(task),
                tasks.size(task),
                reinterpret_cast<Words*>(words.data),
                planes.data,
                reinterpret_cast<Words*>(wanted.data),
                beta.data,
                partial.data,
                score.data,
                chance.data,
                novel.data};
    }
    static Tasks tasks(const Places& places, int threads) { return {places, MOST_CHAINS, 4 * WIDTH, threads}; }
};

template <class T> struct TableRoom {
    Buffer<int32_t> labels, wanted;
    Buffer<uint32_t> novel;
    Buffer<T> weights;
    Buffer<double> score, chance, sums;
    Buffer<const T*> said;

    TableRoom(const Places& places, const Tables<T>& graph, const Request& request)
        : labels(places.cells * BESIDE),
          wanted(request.chance ? places.cells * BESIDE : 0),
          novel(places.joined * BESIDE),
          weights(graph.widest),
          score(places.joined * BESIDE),
          chance(places.joined * BESIDE),
          sums(graph.widest),
          said(graph.busiest + 1) {}
    TableSweep<T> sweep(const Places& places, const Tables<T>& graph, const Request& request, const Tasks& tasks,
                        int64_t task) const {
        return {places,      graph,      request,     tasks.row(task), tasks.first(task), tasks.size(task), labels.data,
                wanted.data, score.data, chance.data, novel.data,      weights.data,      sums.data,        said.data};
    }
    static Tasks tasks(const Places& places, int threads) { return {places, BESIDE, TEAM, threads}; }
};

// False where a label is none of its variable's.
template <class Room, class Graph>
static bool sweep_all(const Places& places, const Graph& graph, const Request& request, int threads) {
    const Tasks tasks = Room::tasks(places, threads);
    const int busy = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, tasks.count())));
    std::vector<std::unique_ptr<Room>> rooms;
    for (int k = 0; k < busy; ++k) rooms.push_back(std::make_unique<Room>(places, graph, request));
    bool fine = true;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads(busy) if (busy > 1) reduction(&& : fine)
#endif
    for (int64_t task = 0; task < tasks.count(); ++task) {
        int number = 0;
#ifdef _OPENMP
        number = omp_get_thread_num();
#endif
        auto sweep = rooms[number]->sweep(places, graph, request, tasks, task);
        fine = sweep.run() && fine;
    }
    return fine;
}

}  // namespace energyml

using namespace energyml;

static constexpr Py_ssize_t COMMON = 1 + 8 + 8;  // the type, places and request

static Places read_places(Arguments& take) {
    Places places;
    places.rows = take.number();
    places.chains = take.number();
    places.cells = take.number();
    places.joined = take.number();
    places.variables = take.number();
    places.in = take.pointer<const int64_t* const>();
    places.out = take.pointer<int64_t* const>();
    places.each = take.pointer<const int64_t>();
    return places;
}

static Request read_request(Arguments& take) {
    Request request;
    request.keys = take.pointer<const uint64_t>();
    request.sweeps = take.number();
    request.from = take.number();
    request.to = take.number();
    request.beta = take.pointer<const double>();
    request.score = take.pointer<double>();
    request.novel = take.pointer<int64_t>();
    request.chance = take.pointer<double>();
    return request;
}

template <class T> static void read(Arguments& take, Pairs<T>& graph) {
    for (const int32_t** one :
         {&graph.order, &graph.start, &graph.earlier, &graph.neighbour, &graph.edge, &graph.example})
        *one = take.pointer<const int32_t>();
    for (const T** one : {&graph.linear, &graph.scored, &graph.weights}) *one = take.pointer<const T>();
    graph.weights_row = take.number();
}

// Lookups are rows of five numbers: rows, row, element, valid, valid_row.
template <class T> static void read(Arguments& take, Tables<T>& graph, std::vector<Lookup<T>>& lookups) {
    for (const int32_t** one :
         {&graph.order, &graph.start, &graph.settled, &graph.lookup, &graph.element, &graph.others, &graph.cell,
          &graph.stride, &graph.variable, &graph.rank, &graph.example})
        *one = take.pointer<const int32_t>();
    graph.unary = take.pointer<const T* const>();
    for (const int64_t** one : {&graph.unary_row, &graph.labels, &graph.padded}) *one = take.pointer<const int64_t>();
    const auto* given = take.pointer<const int64_t>();
    const int64_t count = take.number();
    graph.widest = take.number();
    graph.busiest = take.number();
    if (PyErr_Occurred()) return;
    for (int64_t k = 0; k < count; ++k, given += 5)
        lookups.push_back({reinterpret_cast<const T*>(static_cast<intptr_t>(given[0])), given[1], given[2],
                           reinterpret_cast<const uint8_t*>(static_cast<intptr_t>(given[3])), given[4]});
    graph.lookups = lookups.data();
}

// Nothing, with an error set, where the call went wrong.
template <class Room, class Graph, class Read> static PyObject* called(Arguments take, Read read_graph) {
    const Places places = read_places(take);
    const Request request = read_request(take);
    Graph graph;
    read_graph(take, graph);
    const int threads = static_cast<int>(take.number());
    bool fine = true;
    if (!unlocked([&] { fine = sweep_all<Room>(places, graph, request, threads); })) return nullptr;
    if (!fine) {
        PyErr_SetString(PyExc_ValueError, "a label is none of its variable's");
        return nullptr;
    }
    Py_RETURN_NONE;
}

// pairs(double?, rows, chains, cells, joined, variables, in, out, each, keys, sweeps, from, to, beta, score, novel,
// chance, order, start,
//       earlier, neighbour, edge, example, linear, scored, weights, weights_row, threads)
static PyObject* pairs(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, COMMON + 10 + 1)) return nullptr;
    Arguments take{args};
    if (take.number())
        return called<PairRoom<double>, Pairs<double>>(
            take, [](Arguments& more, Pairs<double>& graph) { read(more, graph); });
    return called<PairRoom<float>, Pairs<float>>(take, [](Arguments& more, Pairs<float>& graph) { read(more, graph); });
}

// tables(double?, ... as for pairs ..., order, start, settled, lookup, element, others, cell, stride, variable, rank,
// example, unary,
//        unary_row, labels, padded, lookups, lookup_count, widest, busiest, threads)
static PyObject* tables(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, COMMON + 19 + 1)) return nullptr;
    Arguments take{args};
    if (take.number()) {
        std::vector<Lookup<double>> lookups;
        return called<TableRoom<double>, Tables<double>>(
            take, [&](Arguments& more, Tables<double>& graph) { read(more, graph, lookups); });
    }
    std::vector<Lookup<float>> lookups;
    return called<TableRoom<float>, Tables<float>>(
        take, [&](Arguments& more, Tables<float>& graph) { read(more, graph, lookups); });
}

// numbers(seed, third, fourth, counter[4]) -> the four numbers of a counter
static PyObject* numbers(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 7)) return nullptr;
    Arguments take{args};
    const uint64_t seed = PyLong_AsUnsignedLongLongMask(*take.next++);
    const auto third = static_cast<uint32_t>(take.number()), fourth = static_cast<uint32_t>(take.number());
    Words x[4] = {};
    for (int k = 0; k < 4; ++k) x[k] += static_cast<uint32_t>(take.number());
    if (PyErr_Occurred()) return nullptr;
    threefry(Key(seed, third, fourth), x);
    return Py_BuildValue("kkkk", static_cast<unsigned long>(x[0][0]), static_cast<unsigned long>(x[1][0]),
                         static_cast<unsigned long>(x[2][0]), static_cast<unsigned long>(x[3][0]));
}

static PyMethodDef methods[] = {
    {"pairs", FAST(pairs), METH_FASTCALL, "Sweeps over cells of two labels joined in pairs."},
    {"tables", FAST(tables), METH_FASTCALL, "Sweeps over cells of any labels and factors."},
    {"numbers", FAST(numbers), METH_FASTCALL, "What the generator makes of a counter."},
    {nullptr, nullptr, 0, nullptr}};

static const Constant constants[] = {{"LANES", Lanes<float>::count}, {nullptr, 0}};

DEFINE_MODULE(methods, constants, "Gibbs sweeps.")
