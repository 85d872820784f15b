// Preloaded before all other libraries: makes the n-th allocation of native code fail, as a lack of memory would.
//
// Allocations count that energyml's own modules ask for, directly or by `operator new`.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" void* __libc_malloc(size_t size);
extern "C" void* __libc_memalign(size_t alignment, size_t size);

static std::atomic<long> left{0};  // allocations until one fails; 0: none fails

static bool fails(void* caller) {
    if (left.load(std::memory_order_relaxed) <= 0) return false;
    Dl_info found;
    if (!dladdr(caller, &found) || !found.dli_fname || !std::strstr(found.dli_fname, "energyml/native/_")) return false;
    return left.fetch_sub(1) == 1;
}

extern "C" void fail_allocation(long number) { left = number; }
extern "C" long allocations_left() { return left; }

extern "C" void* malloc(size_t size) { return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(size); }
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
    return fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, size);
}

static void* allocated(size_t size, void* caller) {
    void* found = fails(caller) ? nullptr : __libc_malloc(size);
    if (!found) throw std::bad_alloc();
    return found;
}
void* operator new(size_t size) { return allocated(size, __builtin_return_address(0)); }
void* operator new[](size_t size) { return allocated(size, __builtin_return_address(0)); }
