// What the rows of a beam read, and what lies between the products of a step: attention over positions that lie
// anywhere, the pointwise part of an LSTM's step, layer normalisation after a residual, and the Gaussian error linear
// unit.
#pragma once

#include "../simd/math.h"
#include "../simd/memory.h"

namespace energyml {

// Queries [rows, heads * size] over keys and values, which are rows of matrices; a list of row numbers says which.
template <class T> struct Attention {
    int64_t rows, heads, size, value_size;
    const T* query;
    int64_t query_row;
    const T* bias;  // [heads * size], added to every query
    const T* key;
    int64_t key_row;
    const T* value;
    int64_t value_row;
    const int32_t* lists;  // [lists, list_row]
    int64_t list_row;
    const int64_t* which;   // [rows] the list of each row; null: its own
    const int32_t* counts;  // [lists] how long each list is; null: all `count`
    int64_t count;
    T* out;  // [rows, heads * value_size]

    // room: [heads, length] and a query.
    INLINE void run(int64_t row, T* room) const {
        constexpr int lanes = Lanes<T>::count;
        const int64_t number = which ? which[row] : row, length = counts ? counts[number] : count;
        const int32_t* list = lists + number * list_row;
        const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(size)));
        T* q = room + heads * length;
        for (int64_t j = 0; j < heads * size; ++j) q[j] = query[row * query_row + j] + bias[j];
        T* result = out + row * heads * value_size;
        if (size == value_size && size == 4 * lanes)
            in_registers<4>(list, length, q, room, scale, result);
        else if (size == value_size && size == 8 * lanes)
            in_registers<8>(list, length, q, room, scale, result);
        else if (size == value_size && size == 16 * lanes)
            in_registers<16>(list, length, q, room, scale, result);
        else
            in_memory(list, length, q, room, scale, result);
    }

  private:
    // Heads of N vectors: queries, and the sums of what is read, stay in registers.
    template <int N> INLINE void in_registers(const int32_t* list, int64_t length, const T* q, T* room, T scale,
                                              T* result) const {
        constexpr int lanes = Lanes<T>::count;
        for (int64_t head = 0; head < heads; ++head) {
            V<T> asked[N], sums[N];
            for (int k = 0; k < N; ++k) {
                asked[k] = load(q + head * size + k * lanes) * scale;
                sums[k] = V<T>{};
            }
            const T* keys = key + head * size;
            for (int64_t p = 0; p < length; ++p) {
                const T* from = keys + static_cast<int64_t>(list[p]) * key_row;
                V<T> even = asked[0] * load(from), odd = asked[1] * load(from + lanes);
                for (int k = 2; k < N; k += 2) {
                    even += asked[k] * load(from + k * lanes);
                    odd += asked[k + 1] * load(from + (k + 1) * lanes);
                }
                room[p] = horizontal_sum<T>(even + odd);
            }
            normalise(room, length);
            const T* values = value + head * size;
            for (int64_t p = 0; p < length; ++p) {
                const T* from = values + static_cast<int64_t>(list[p]) * value_row;
                const T weight = room[p];
                for (int k = 0; k < N; ++k) sums[k] += weight * load(from + k * lanes);
            }
            for (int k = 0; k < N; ++k) store(result + head * size + k * lanes, sums[k]);
        }
    }

    // Heads of any size.  Positions are gone through one after another with all heads, so that each is read once, where
    // it lies.
    INLINE void in_memory(const int32_t* list, int64_t length, const T* q, T* room, T scale, T* result) const {
        constexpr int lanes = Lanes<T>::count;
        for (int64_t p = 0; p < length; ++p) {
            const T* k = key + static_cast<int64_t>(list[p]) * key_row;
            if (p + 1 < length) ahead(key + static_cast<int64_t>(list[p + 1]) * key_row, heads * size);
            for (int64_t head = 0; head < heads; ++head)
                room[head * length + p] = scale * product(q + head * size, k + head * size);
        }
        for (int64_t head = 0; head < heads; ++head) normalise(room + head * length, length);
        std::fill(result, result + heads * value_size, T(0));
        for (int64_t p = 0; p < length; ++p) {
            const T* v = value + static_cast<int64_t>(list[p]) * value_row;
            if (p + 1 < length) ahead(value + static_cast<int64_t>(list[p + 1]) * value_row, heads * value_size);
            for (int64_t head = 0; head < heads; ++head) {
                const T weight = room[head * length + p];
                T* to = result + head * value_size;
                const T* from = v + head * value_size;
                int64_t j = 0;
                for (; j + lanes <= value_size; j += lanes) store(to + j, load(to + j) + weight * load(from + j));
                for (; j < value_size; ++j) to[j] += weight * from[j];
            }
        }
    }

    static INLINE void ahead(const T* row, int64_t numbers) {
        for (int64_t j = 0; j < numbers; j += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(row + j);
    }

    INLINE T product(const T* a, const T* b) const {
        constexpr int lanes = Lanes<T>::count;
        V<T> sum = {}, other = {};
        int64_t j = 0;
        for (; j + 2 * lanes <= size; j += 2 * lanes) {
            sum += load(a + j) * load(b + j);
            other += load(a + j + lanes) * load(b + j + lanes);
        }
        if (j + lanes <= size) {
            sum += load(a + j) * load(b + j);
            j += lanes;
        }
        T total = horizontal_sum<T>(sum + other);
        for (; j < size; ++j) total += a[j] * b[j];
        return total;
    }

    // The softmax, in place.
    static INLINE void normalise(T* x, int64_t length) {
        constexpr int lanes = Lanes<T>::count;
        T high = -std::numeric_limits<T>::infinity();
        for (int64_t p = 0; p < length; ++p) high = std::max(high, x[p]);
        V<T> sums = {};
        int64_t p = 0;
        for (; p + lanes <= length; p += lanes) {
            const V<T> e = exponential<T>(load(x + p) - high);
            store(x + p, e);
            sums += e;
        }
        T total = horizontal_sum<T>(sums);
        if (p < length) {  // the rest as a vector of its own
            T rest[lanes];
            for (int64_t k = 0; k < lanes; ++k) rest[k] = p + k < length ? x[p + k] - high : Lanes<T>::low - 1;
            store(rest, exponential<T>(load(rest)));
            for (int64_t k = 0; p + k < length; ++k) total += x[p + k] = rest[k];
        }
        const T share = 1 / total;
        for (p = 0; p < length; ++p) x[p] *= share;
    }
};

// Gates i, f, g, o [rows, 4 * hidden] as a sum of parts, each with a row number for each row; null where a part is
// missing.
template <class T> struct Cell {
    int64_t rows, hidden;
    const T* part[4];
    const int64_t* which[4];  // null: its own row
    const T* before;          // cells of the step before, by `parent`
    const int64_t* parent;
    T *state, *cell;  // [rows, hidden]

    INLINE void run(int64_t row) const {
        constexpr int lanes = Lanes<T>::count;
        const T* from[4];
        for (int k = 0; k < 4; ++k)
            from[k] = part[k] ? part[k] + (which[k] ? which[k][row] : row) * 4 * hidden : nullptr;
        const T* old = before + parent[row] * hidden;
        int64_t j = 0;
        for (; j + lanes <= hidden; j += lanes) {
            V<T> gate[4];
            for (int g = 0; g < 4; ++g) {
                gate[g] = V<T>{};
                for (int k = 0; k < 4; ++k)
                    if (from[k]) gate[g] += load(from[k] + g * hidden + j);
            }
            const V<T> c = sigmoid(gate[1]) * load(old + j) + sigmoid(gate[0]) * hyperbolic(gate[2]);
            store(cell + row * hidden + j, c);
            store(state + row * hidden + j, sigmoid(gate[3]) * hyperbolic(c));
        }
        for (; j < hidden; ++j) {
            T gate[4] = {};
            for (int g = 0; g < 4; ++g)
                for (int k = 0; k < 4; ++k)
                    if (from[k]) gate[g] += from[k][g * hidden + j];
            const T c = old[j] / (1 + std::exp(-gate[1])) + std::tanh(gate[2]) / (1 + std::exp(-gate[0]));
            cell[row * hidden + j] = c;
            state[row * hidden + j] = std::tanh(c) / (1 + std::exp(-gate[3]));
        }
    }

  private:
    // The exponential does not overflow, and NaN stays what it is.
    static INLINE V<T> sigmoid(V<T> x) {
        const V<T> most = all<T>(-Lanes<T>::low);
        const V<T> away = V<T>{} - x;
        const V<T> s = T(1) / (T(1) + exponential<T>(away > most ? most : away));
        return x == x ? s : x;
    }
    static INLINE V<T> hyperbolic(V<T> x) { return T(2) * sigmoid(x + x) - T(1); }
};

// x += delta + bias, in place, and its layer normalisation.
template <class T> struct Norm {
    int64_t rows, size;
    T* x;
    const T *delta, *bias;  // [rows, size] and [size], or both null
    const T *gain, *shift;
    double epsilon;
    T* out;

    INLINE void run(int64_t row) const {
        constexpr int lanes = Lanes<T>::count;
        const int64_t whole = size / lanes * lanes;
        T* a = x + row * size;
        T* to = out + row * size;
        V<T> sums = {};
        T sum = 0;
        int64_t j = 0;
        for (; j < whole; j += lanes) {
            if (delta) store(a + j, load(a + j) + load(delta + row * size + j) + load(bias + j));
            sums += load(a + j);
        }
        for (; j < size; ++j) {
            if (delta) a[j] += delta[row * size + j] + bias[j];
            sum += a[j];
        }
        const T mean = (horizontal_sum<T>(sums) + sum) / static_cast<T>(size);
        sums = V<T>{};
        sum = 0;
        for (j = 0; j < whole; j += lanes) {
            const V<T> away = load(a + j) - mean;
            sums += away * away;
        }
        for (; j < size; ++j) sum += (a[j] - mean) * (a[j] - mean);
        const double variance = static_cast<double>(horizontal_sum<T>(sums) + sum) / static_cast<double>(size);
        const T scale = static_cast<T>(1 / std::sqrt(variance + epsilon));
        for (j = 0; j < whole; j += lanes)
            store(to + j, (load(a + j) - mean) * scale * load(gain + j) + load(shift + j));
        for (; j < size; ++j) to[j] = (a[j] - mean) * scale * gain[j] + shift[j];
    }
};

// x = gelu(x + bias), in place: x / 2 * (1 + erf(x / sqrt 2)).
template <class T> struct Gelu {
    int64_t rows, size;
    T* x;
    const T* bias;

    INLINE void run(int64_t row) const {
        constexpr int lanes = Lanes<T>::count;
        T* a = x + row * size;
        int64_t j = 0;
        if constexpr (std::is_same_v<T, float>)
            for (; j + lanes <= size; j += lanes) {
                const V<T> v = load(a + j) + load(bias + j);
                store(a + j, v * 0.5f * (1.0f + error_function(v * 0.70710678118654752f)));
            }
        for (; j < size; ++j) {
            const T v = a[j] + bias[j];
            a[j] = v / 2 * (1 + std::erf(v * static_cast<T>(0.70710678118654752440)));
        }
    }

  private:
    // A ratio of polynomials, to about 3e-7 (that of Eigen); beyond 3.74 it is 1 in single precision.  NaN stays what
    // it is.
    static INLINE V<float> error_function(V<float> x) {
        const V<float> most = all<float>(3.7439211627767994f);
        V<float> y = x > most ? most : x;
        y = y < -most ? -most : y;
        const V<float> s = y * y;
        V<float> up = s * 2.2905065861350646e-4f + 3.4082910107109506e-3f;
        up = up * s + 5.0955695062380861e-2f;
        up = up * s + 1.8520832239976145e-1f;
        up = up * s + 1.1283791435190840f;
        V<float> down = s * -1.1791602954361697e-7f + 2.3547966471313185e-5f;
        down = down * s + 1.0179625278914885e-3f;
        down = down * s + 1.4070470171167667e-2f;
        down = down * s + 1.1098505178285362e-1f;
        down = down * s + 4.9746925110067538e-1f;
        down = down * s + 1.0f;
        const V<float> value = y * up / down;
        return x > most ? all<float>(1) : x < -most ? all<float>(-1) : value;
    }
};

}  // namespace energyml
