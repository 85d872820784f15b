// Memory and sizes that every module uses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>

namespace energyml {

// Memory that is not cleared, as everything in it is written before it is read.  It begins with a line of the cache,
// and a line more than was asked for may be read.
template <class T> struct Buffer {
    static constexpr size_t LINE = 64;
    T* data;
    explicit Buffer(size_t n) : start_(std::malloc(std::max<size_t>(n, 1) * sizeof(T) + 2 * LINE)) {
        if (!start_) throw std::bad_alloc();
        data = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(start_) + LINE - 1) / LINE * LINE);
    }
    ~Buffer() { std::free(start_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

  private:
    void* start_;
};

// Whether memory sufficed for some work.  Nothing may be thrown out of a parallel region, or while Python's lock is
// released: it would end the process.
template <class Work> bool memory_suffices(const Work& work) {
    try {
        work();
    } catch (const std::exception&) {  // or a size beyond any memory
        return false;
    }
    return true;
}

inline int64_t round_up(int64_t n, int64_t lanes) { return (n + lanes - 1) / lanes * lanes; }

}  // namespace energyml
