// The most float32 multiply-adds that one core does in a second: sums in registers, so many that none waits for another.
#include <chrono>
#include <cstdio>

#ifdef __AVX512F__
constexpr int lanes = 16;
#else
constexpr int lanes = 8;
#endif
typedef float Vector __attribute__((vector_size(4 * lanes)));

int main() {
    constexpr int sums = 12, turns = 4000000;
    double most = 0;
    for (int run = 0; run < 10; ++run) {
        Vector total[sums], factor, entry;
        for (int lane = 0; lane < lanes; ++lane) factor[lane] = 0.5f, entry[lane] = 0.1f;
#pragma GCC unroll 12
        for (int k = 0; k < sums; ++k) total[k] = entry;
        const auto start = std::chrono::steady_clock::now();
        for (int turn = 0; turn < turns; ++turn) {
#pragma GCC unroll 12
            for (int k = 0; k < sums; ++k) {
                total[k] = total[k] * factor + entry;
                asm volatile("" : "+v"(total[k]));  // neither moved nor left out
            }
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        const double speed = static_cast<double>(lanes) * sums * turns / took.count();
        most = speed > most ? speed : most;
    }
    std::printf("%.6g\n", most);
}
