// Questions that are asked again and again: programs whose tables are tensors as they are, so that nothing is made of them in between.
#pragma once

#include <memory>

#include <numeric>

#include "../python/tensors.h"

namespace energyml {

// A tensor of torch's own classes in the processor's memory; false, without a Python error, for another object.
inline bool seen(PyObject* object, DLTensor& out) {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (!torch.exchange || (type != torch.tensor && type != torch.parameter)) return false;
    constexpr int32_t processor = 1;
    if (torch.exchange->look(object, &out) == 0) return out.device == processor && out.lanes == 1;
    PyErr_Clear();
    return false;
}

inline bool is_contiguous(const DLTensor& tensor) {
    int64_t each = 1;
    for (int32_t i = tensor.dims; i-- > 0; each *= tensor.shape[i])
        if (tensor.strides && tensor.shape[i] != 1 && tensor.strides[i] != each) return false;
    return true;
}

// Where the numbers of a tensor begin that is contiguous, of 64 bits and of a kind; null where it is another.
inline void* numbers_in(const DLTensor& tensor, uint8_t code) {
    if (tensor.code != code || tensor.bits != 64 || !is_contiguous(tensor)) return nullptr;
    return static_cast<char*>(tensor.data) + tensor.offset;
}
inline const double* reals_in(const DLTensor& tensor) { return static_cast<const double*>(numbers_in(tensor, 2)); }
inline const int64_t* wholes_in(const DLTensor& tensor) { return static_cast<const int64_t*>(numbers_in(tensor, 0)); }

inline bool has_shape(const DLTensor& tensor, const std::vector<int64_t>& shape) {
    return std::equal(shape.begin(), shape.end(), tensor.shape, tensor.shape + tensor.dims);
}

inline std::vector<int64_t> shape_of(const DLTensor& tensor) { return std::vector<int64_t>(tensor.shape, tensor.shape + tensor.dims); }

inline int64_t product_of(const std::vector<int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
}

struct Question {
    Object program;  // holds the graph
    const Graph* graph;
    std::vector<int64_t> labels;               // of the known cells
    Object names;                              // of the parameters that are the first tables
    std::vector<std::vector<int64_t>> shapes;  // of these
    std::vector<int64_t> strides;              // of tables over examples, of which there is one
    Object marginals;                          // shapes of the gradients of the other tables, which are zeros; empty for log Z
    std::vector<int64_t> order;                // in which cells are eliminated, where it was found here
};

inline constexpr const char* QUESTION = "energyml.question";

inline void forget_question(PyObject* capsule) { delete static_cast<Question*>(PyCapsule_GetPointer(capsule, QUESTION)); }

inline Object held(PyObject* object) {
    Py_INCREF(object);
    return Object(object);
}

// A new tensor of some shape beside another one, not filled.
inline Object new_beside(PyObject* beside, PyObject* shape) {
    PyObject* args[] = {beside, shape};
    return Object(PyObject_VectorcallMethod(torch.new_empty, args, 2, nullptr));
}

// A new tensor [1] that holds a number, in memory of its own: half as long as asking torch for one and writing into it.
inline PyObject* tensor_of(double number) {
    struct Box {
        Lent lent;
        int64_t one;  // its size and its stride
        double number;
    };
    auto* box = static_cast<Box*>(std::malloc(sizeof(Box)));
    if (!box) return PyErr_NoMemory();
    constexpr int32_t processor = 1;
    constexpr uint8_t real = 2, bits = 64;
    box->one = 1;
    box->number = number;
    box->lent = {1, 0, nullptr, [](Lent* self) { std::free(self); }, 0, {&box->number, processor, 0, 1, real, bits, 1, &box->one, &box->one, 0}};
    void* made = nullptr;
    if (torch.exchange->adopt(&box->lent, &made) == 0) return static_cast<PyObject*>(made);
    std::free(box);
    return nullptr;
}

// make_question(program, labels, known, names, shapes, marginals) -> a question for `ask`; labels: of all cells, known: the known ones
inline PyObject* make_question(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 6)) return nullptr;
    auto made = std::make_unique<Question>();
    made->program = held(args[0]);
    auto* graph = static_cast<Graph*>(PyCapsule_GetPointer(args[0], PROGRAM));
    if (!graph) return nullptr;
    made->graph = graph;
    Arguments take{args + 1};
    const auto* labels = take.pointer<const int64_t>();
    const auto* known = take.pointer<const int64_t>();
    if (PyErr_Occurred()) return nullptr;
    for (int64_t k = 0; k < graph->known; ++k) made->labels.push_back(labels[known[k]]);
    made->names = held(args[3]);
    for (Py_ssize_t k = 0; k < PyTuple_Size(args[4]); ++k) made->shapes.push_back(numbers_of(PyTuple_GET_ITEM(args[4], k)));
    made->strides.resize(graph->sources.size(), 0);
    made->marginals = held(args[5]);
    if (PyTuple_Size(args[5]) > 0 && !memory_suffices([&] { graph->find_returns(); })) return PyErr_NoMemory();
    if (PyErr_Occurred()) return nullptr;
    return PyCapsule_New(made.release(), QUESTION, forget_question);
}

// What a question is about, read from Python: variables, and terms whose tables are parameters as they are.
struct Subject {
    std::vector<int64_t> starts{0}, sizes, labels, known;  // starts: of the cells of variables; sizes, labels: of cells
    std::vector<uint8_t> marks;
    std::vector<std::vector<int64_t>> own;  // shapes of variables with an axis for labels
    std::vector<std::vector<int64_t>> listed, shapes, domains;  // of terms: cells of elements, shapes of parameters and index sets
    std::vector<int64_t> arities;
    std::vector<Places> places;

    // (shape, how many labels, known labels [1, *shape] with -1 for others or None)
    bool add_variable(PyObject* one) {
        std::vector<int64_t> shape = numbers_of(PyTuple_GetItem(one, 0));
        const int64_t cells = product_of(shape), labels_of_each = PyLong_AsLongLong(PyTuple_GetItem(one, 1));
        PyObject* evidence = PyTuple_GetItem(one, 2);
        if (PyErr_Occurred() || cells < 1 || labels_of_each < 1) return false;
        const int64_t* given = nullptr;
        DLTensor found;
        if (evidence != Py_None) {
            if (!seen(evidence, found) || !(given = wholes_in(found)) || product_of(shape_of(found)) != cells) return false;
        }
        for (int64_t cell = 0; cell < cells; ++cell) {
            const bool is_known = given && given[cell] >= 0;
            if (is_known) known.push_back(starts.back() + cell);
            labels.push_back(is_known ? given[cell] : 0);
            marks.push_back(is_known);
        }
        sizes.insert(sizes.end(), static_cast<size_t>(cells), labels_of_each);
        starts.push_back(starts.back() + cells);
        shape.push_back(labels_of_each);
        own.push_back(std::move(shape));
        return true;
    }

    // (parameter, edges [1, rows, ends] or None, ends of the scope's cells, their variables); without edges there is an element for each cell of
    // the variable
    bool add_term(PyObject* one) {
        DLTensor parameter, edges;
        const std::vector<int64_t> ends = numbers_of(PyTuple_GetItem(one, 2)), variables = numbers_of(PyTuple_GetItem(one, 3));
        PyObject* list = PyTuple_GetItem(one, 1);
        if (PyErr_Occurred() || !seen(PyTuple_GetItem(one, 0), parameter) || !reals_in(parameter)) return false;
        const auto arity = static_cast<int64_t>(variables.size());
        arities.push_back(arity);
        listed.emplace_back();
        if (list == Py_None) {
            const auto& cells = own[static_cast<size_t>(variables[0])];
            domains.emplace_back(cells.begin(), cells.end() - 1);
            places.push_back({nullptr, product_of(domains.back()), 1, starts[static_cast<size_t>(variables[0])]});
        } else {
            const int64_t* rows = seen(list, edges) && edges.dims == 3 && edges.shape[0] == 1 ? wholes_in(edges) : nullptr;
            if (!rows) return false;
            std::vector<int64_t>& cells = listed.back();
            cells.reserve(static_cast<size_t>(edges.shape[1] * arity));
            for (int64_t row = 0; row < edges.shape[1]; ++row)
                for (size_t k = 0; k < variables.size(); ++k) {
                    const int64_t start = starts[static_cast<size_t>(variables[k])], count = starts[static_cast<size_t>(variables[k]) + 1] - start;
                    const int64_t at = rows[row * edges.shape[2] + ends[k]];
                    cells.push_back(at >= 0 && at < count ? start + at : -1);
                }
            domains.push_back({edges.shape[1]});
            places.push_back({cells.data(), edges.shape[1], arity, 0});
        }
        shapes.push_back(domains.back());
        for (int64_t variable : variables) shapes.back().push_back(own[static_cast<size_t>(variable)].back());
        return has_shape(parameter, shapes.back());
    }

    // One more table for each variable, with the shares of its cells or, where nobody wants them, of zeros: for cells that no term is about.
    void add_cells(bool all) {
        for (size_t v = 0; all && v < own.size(); ++v) places.push_back({nullptr, starts[v + 1] - starts[v], 1, starts[v]});
        if (all) return;
        std::vector<int64_t> alone(static_cast<size_t>(starts.back()));
        std::iota(alone.begin(), alone.end(), int64_t{0});
        for (const Places& table : places)
            for (int64_t element = 0; element < table.count; ++element) {
                const int64_t only = table.first + element;
                const int64_t *cells = table.cells ? table.cells + element * table.arity : &only, *end = cells + table.arity;
                if (std::find(cells, end, -1) == end)
                    for (; cells < end; ++cells) alone[static_cast<size_t>(*cells)] = -1;
            }
        listed.push_back(std::move(alone));
        for (size_t v = 0; v < own.size(); ++v) places.push_back({listed.back().data() + starts[v], starts[v + 1] - starts[v], 1, 0});
    }

    // The program of the cheapest order that is found, or of a known one; null where that takes more than some operations, or some bytes.
    std::unique_ptr<Graph> program(const std::vector<Trial>& trials, double most_operations, double most_bytes, bool marginals, std::vector<int64_t>& order) {
        add_cells(marginals);
        const Gathered factors(places, starts.back());
        Scopes graph{starts.back(), static_cast<int64_t>(factors.sources.size()), factors.members.data(), factors.starts.data(), sizes.data(), marks.data()};
        Compiled made;
        if (order.empty()) {
            graph.weigh();
            if (!plan_cheapest(graph, trials, most_operations, made)) return nullptr;
            order = made.order;
        } else {
            made.order = order;
            compile_order(graph, made);
        }
        if (2 * sizeof(double) * made.entries > most_bytes) return nullptr;
        Layout layout{factors.sources.data(), factors.elements.data(), {}, 0, known.data(), static_cast<int64_t>(known.size())};
        for (size_t k = 0; k < shapes.size(); ++k) layout.add(domains[k], arities[k], &shapes[k]);
        for (const auto& shape : own) layout.add({shape.begin(), shape.end() - 1}, 1, marginals ? &shape : nullptr);
        return std::make_unique<Graph>(Assembly(graph, layout).read(made.numbers.data()));
    }
};

// Searches: a method, a way to break ties, and the operations from which it is worth its while.
inline std::vector<Trial> read_trials(PyObject* tuple) {
    std::vector<Trial> found;
    for (Py_ssize_t k = 0; k < PyTuple_Size(tuple); ++k) {
        PyObject* one = PyTuple_GET_ITEM(tuple, k);
        const int64_t method = PyLong_AsLongLong(PyTuple_GetItem(one, 0)), ties = PyLong_AsLongLong(PyTuple_GetItem(one, 1));
        const double worth = PyFloat_AsDouble(PyTuple_GetItem(one, 2));
        if (PyErr_Occurred()) break;
        found.push_back({search_by(method, std::numeric_limits<double>::infinity(), ties), worth});
    }
    return found;
}

// plan_question(trials, operations, bytes, variables, terms, names, marginals, like) -> a question for `ask`; None where the best order that
// is found takes more operations or bytes, or tables are not parameters as they are; like: another question about the same, whose order is
// taken, or None
inline PyObject* plan_question(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 8)) return nullptr;
    Arguments take{args + 1};
    const std::vector<Trial> trials = read_trials(args[0]);
    const double most_operations = take.real(), most_bytes = take.real();
    std::vector<int64_t> order;
    if (args[7] != Py_None) {
        const auto* like = static_cast<const Question*>(PyCapsule_GetPointer(args[7], QUESTION));
        if (like) order = like->order;
    }
    if (PyErr_Occurred()) return nullptr;
    Subject subject;
    bool fine = true;
    const auto read_all = [&] {
        for (Py_ssize_t k = 0; fine && k < PyTuple_Size(args[3]); ++k) fine = subject.add_variable(PyTuple_GET_ITEM(args[3], k));
        for (Py_ssize_t k = 0; fine && k < PyTuple_Size(args[4]); ++k) fine = subject.add_term(PyTuple_GET_ITEM(args[4], k));
    };
    if (!memory_suffices(read_all)) return PyErr_NoMemory();
    if (PyErr_Occurred()) return nullptr;
    if (!fine) Py_RETURN_NONE;
    const bool marginals = PyTuple_Size(args[6]) > 0;
    std::unique_ptr<Graph> graph;
    if (!unlocked([&] { graph = subject.program(trials, most_operations, most_bytes, marginals, order); })) return nullptr;
    if (!graph) Py_RETURN_NONE;
    if (marginals && !memory_suffices([&] { graph->find_returns(); })) return PyErr_NoMemory();
    auto made = std::make_unique<Question>();
    made->graph = graph.get();
    made->program = Object(PyCapsule_New(graph.get(), PROGRAM, forget_program));
    if (!made->program) return nullptr;
    graph.release();
    for (int64_t cell : subject.known) made->labels.push_back(subject.labels[static_cast<size_t>(cell)]);
    made->names = held(args[5]);
    made->shapes = std::move(subject.shapes);
    made->strides.resize(made->graph->sources.size(), 0);
    made->marginals = held(args[6]);
    made->order = std::move(order);
    return PyCapsule_New(made.release(), QUESTION, forget_question);
}

// Entries of messages from which other threads of Python's are let in meanwhile: fewer take microseconds, as long as letting go of the lock.
inline constexpr int64_t WORTH_UNLOCKING = 4096;

// ask(question, parameters) -> log Z [1], or a tuple of marginals; None where the parameters are not what they were
inline PyObject* ask(PyObject*, PyObject* const* args, Py_ssize_t n) {
    if (!counted(n, 2)) return nullptr;
    const auto* question = static_cast<const Question*>(PyCapsule_GetPointer(args[0], QUESTION));
    if (!question) return nullptr;
    const size_t given = question->shapes.size(), tables = question->graph->sources.size();
    const Py_ssize_t wanted = PyTuple_GET_SIZE(question->marginals.held);
    std::vector<const double*> values(tables, nullptr);
    std::vector<double*> gradients(wanted ? tables : 0, nullptr);
    PyObject* beside = nullptr;
    for (size_t k = 0; k < given; ++k) {
        beside = PyDict_GetItemWithError(args[1], PyTuple_GET_ITEM(question->names.held, static_cast<Py_ssize_t>(k)));
        if (!beside && PyErr_Occurred()) return nullptr;
        DLTensor found;
        if (beside && seen(beside, found) && has_shape(found, question->shapes[k])) values[k] = reals_in(found);
        if (!values[k]) Py_RETURN_NONE;
    }
    Object found(PyTuple_New(wanted));
    if (!found) return nullptr;
    for (Py_ssize_t k = 0; k < wanted; ++k) {
        Object made = new_beside(beside, PyTuple_GET_ITEM(question->marginals.held, k));
        DLTensor seen;
        if (!made || torch.exchange->look(made.held, &seen) != 0) return nullptr;
        gradients[given + static_cast<size_t>(k)] = static_cast<double*>(seen.data);
        std::memset(seen.data, 0, sizeof(double) * static_cast<size_t>(question->graph->sources[given + static_cast<size_t>(k)].entries));
        PyTuple_SET_ITEM(found.held, k, made.given_away());
    }
    const int64_t row = 0;
    const double weight = 1;
    double log_z = 0;
    Wanted asked{};
    asked.products = true;
    asked.rows = &row;
    asked.count = 1;
    asked.tables = values.data();
    asked.example_strides = asked.gradient_strides = asked.thread_strides = question->strides.data();
    asked.table_count = static_cast<int64_t>(tables);
    asked.labels = question->labels.data();
    asked.log_z = &log_z;
    asked.weights = wanted ? &weight : nullptr;
    asked.gradients = gradients.data();
    asked.sums = static_cast<int64_t>(question->graph->steps.size());
    const auto work = [&] { eliminate_all(*question->graph, asked, 1); };
    if (!(question->graph->workspace > WORTH_UNLOCKING ? unlocked(work) : locked(work))) return nullptr;
    return wanted ? found.given_away() : tensor_of(log_z);
}

}  // namespace energyml
