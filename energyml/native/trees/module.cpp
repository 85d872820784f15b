// Trees that are given at run time, as a module over plain pointers: the caller owns every buffer.
#include "../python/arguments.h"
#include "../python/module.h"
#include "trees.h"

using namespace energyml;

// order_forest(B, nodes, edges, ends, exists, parent, edge, order, height, swapped, count) -> examples whose edges make
// a cycle
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
            cyclic += !order_forest(nodes, edges, ends + b * edges * 2, exists + at, parent + at, edge + at, order + at,
                                    height + at, swapped + at, count + b, room);
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

// sweep_forest(double?, B, nodes, labels, parent, edge, order, height, swapped, count, unary, pair, example_stride,
// edge_stride, log_z,
//              weights, unary_gradient, pair_gradient, gradient_stride, apart, labels, answers, threads)
static PyObject* sweep_forest(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 23)) return nullptr;
    Arguments take{args};
    if (!(take.number() ? read_and_sweep<double>(take) : read_and_sweep<float>(take))) return nullptr;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"order_forest", FAST(order_forests), METH_FASTCALL, "Parents and an order of the nodes of trees."},
    {"sweep_forest", FAST(sweep_forest), METH_FASTCALL, "Messages along trees, and back."},
    {nullptr, nullptr, 0, nullptr}};

static const Constant constants[] = {{nullptr, 0}};

DEFINE_MODULE(methods, constants, "Trees that are given at run time.")
