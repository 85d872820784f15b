// Attention of the rows of a beam over positions that lie anywhere.
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

}  // namespace energyml
