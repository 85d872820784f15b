// Conjugate gradients on one system, by one thread or by a team that shares its pieces.
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include "sweeps.h"

namespace energyml {

// What a solve found.
struct Found {
    int64_t iterations;
    double residual;  // |b - Q x| / |b|
    bool negative;    // the matrix is not positive definite
};

// One of the threads that work on a system together; all of them run the same program.
struct Member {
    int rank, size;

    void wait() const {
#ifdef _OPENMP
        if (size > 1) {
#pragma omp barrier
        }
#endif
    }
};

// Conjugate gradients in one pass over memory for each step.  The squared norm that a step's beta needs is predicted
// from sums of the pass before, and recomputed by the next pass for alpha: the predict-and-recompute variant of Chen
// and Carson (SIAM J. Sci. Comput. 42(5), 2020, algorithm PR-CG), as accurate as that of Hestenes and Stiefel, which
// needs two passes.
template <class T> class Solver {
  public:
    // `sums`: two of them for each piece.  The team shares the vectors and the sums.
    Solver(const System<T>& system, const Vectors<T>& vectors, Sums* sums, Member member)
        : system_(system), grid_(*system.matrix.grid), vectors_(vectors), sums_(sums), member_(member) {
        system_.matrix.flat = vectors.flat;
        first_ = grid_.pieces * member.rank / member.size;
        last_ = grid_.pieces * (member.rank + 1) / member.size;
        begin_ = grid_.start(first_);
        end_ = grid_.start(last_);
        inner_first_ = first_;
        inner_last_ = last_;
        // Pieces whose product needs nobody else's cells.
        while (begin_ > 0 && inner_first_ < last_ && grid_.start(inner_first_) - grid_.reach < begin_) ++inner_first_;
        while (end_ < grid_.cells && inner_last_ > inner_first_ && grid_.start(inner_last_) + grid_.reach > end_)
            --inner_last_;
    }

    // `inverted`: whether the inverse of this matrix's diagonal is in place, and positive; set when it is in the end.
    Found run(bool& inverted) {
        for (int64_t piece = first_; piece < last_; ++piece)
            sums()[piece] = prepare<T>(system_, vectors_, grid_.start(piece), grid_.start(piece + 1));
        const double norm = gather().rr;
        if (!std::isfinite(norm)) return {0, NAN, false};
        if (norm == 0) {
            std::fill(vectors_.x + begin_, vectors_.x + end_, T{});
            return {0, 0.0, false};
        }
        const int size = std::ilogb(norm / grid_.cells) / 2;
        if (std::abs(size) > UNUSUAL) rescale(std::ldexp(1.0, -size));
        const Found found = approach(norm * system_.scale * system_.scale, inverted);
        if (system_.scale != 1) rescale(1.0 / system_.scale);
        return found;
    }

  private:
    static constexpr double FALLING = 0.81;  // of the square: less than a tenth is the noise of rounding
    static constexpr int UNUSUAL = 20;       // right-hand sides beyond 2^20 and below 2^-20 are scaled

    Found approach(double norm, bool& inverted) {
        const double wanted = system_.tolerance * system_.tolerance * norm;
        // Below the rounding of the right-hand side itself, the recursion goes on for nothing.
        const double least = std::numeric_limits<T>::epsilon() / 8.0, target = std::max(wanted, least * least * norm);
        double before = std::numeric_limits<double>::infinity(), left = system_.start ? true_residual() : norm;
        if (vectors_.flat && !inverted && left > wanted) {
            for (int64_t piece = first_; piece < last_; ++piece) flatten<T>(system_.matrix, piece, vectors_.flat);
            member_.wait();
        }
        if (system_.jacobi && !inverted && left > wanted) inverted = invert();
        bool negative = system_.jacobi && !inverted && left > wanted;
        int64_t steps = 0;
        // The residual of the recursion drifts from the true one: start again from that while it falls.
        while (!negative && left > wanted && left < FALLING * before && steps < system_.iterations) {
            before = left;
            if (!descend(target, steps, negative)) return {steps, NAN, negative};
            left = true_residual();
        }
        return {steps, std::isfinite(left) ? std::sqrt(left / norm) : NAN, negative};
    }

    void rescale(double factor) {
        const T by = static_cast<T>(factor);
        for (int64_t i = begin_; i < end_; ++i) vectors_.x[i] *= by, vectors_.r[i] *= by;
        system_.scale *= factor;
        member_.wait();
    }

    // Steps until the residual of the recursion is small, negative curvature, or as many as allowed; false for what is
    // not finite.
    bool descend(double target, int64_t& steps, bool& negative) {
        Sums found = sweep(0, 0, true);
        while (true) {
            if (!std::isfinite(found.rr + found.rz + found.ps + found.zs + found.ss)) return false;
            if (found.rr <= target || steps == system_.iterations) return true;
            negative = found.ps <= 0;
            if (negative) return true;
            const T alpha = static_cast<T>(found.rz / found.ps);
            const double step = alpha, predicted = found.rz - 2 * step * found.zs + step * step * found.ss;
            ++steps;
            found = sweep(alpha, static_cast<T>(std::max(0.0, predicted) / found.rz), false);
        }
    }

    // One pass: cells move on just ahead of the product that needs them.
    Sums sweep(T alpha, T beta, bool restart) {
        int64_t moved = begin_;
        for (int64_t piece = first_; piece < last_; ++piece) {
            // Whole vectors: a rest is slow.
            const int64_t ahead = std::min(end_, begin_ + round_up(grid_.start(piece + 1) + grid_.reach - begin_, 16));
            if (ahead > moved) {
                if (restart)
                    begin<T>(system_, vectors_, moved, ahead);
                else
                    advance<T>(system_, vectors_, alpha, beta, moved, ahead);
                moved = ahead;
            }
            if (piece >= inner_first_ && piece < inner_last_) curve(piece);
        }
        member_.wait();
        for (int64_t piece = first_; piece < inner_first_; ++piece) curve(piece);
        for (int64_t piece = inner_last_; piece < last_; ++piece) curve(piece);
        return gather();
    }
    void curve(int64_t piece) {
        sums()[piece] = system_.jacobi ? curvature<T, true>(system_.matrix, vectors_, piece)
                                       : curvature<T, false>(system_.matrix, vectors_, piece);
    }

    double true_residual() {
        for (int64_t piece = first_; piece < last_; ++piece) sums()[piece] = residual<T>(system_, vectors_, piece);
        return gather().rr;
    }

    bool invert() {
        for (int64_t piece = first_; piece < last_; ++piece) {
            sums()[piece] = {};
            sums()[piece].rr = invert_diagonal<T>(system_.matrix, piece, vectors_.inverse) ? 0.0 : 1.0;
        }
        return gather().rr == 0;
    }

    // The sums over all pieces, once the whole team is here.  Two sets take turns: nobody writes to one that others
    // still add up.
    Sums gather() {
        member_.wait();
        Sums total{};
        for (int64_t piece = 0; piece < grid_.pieces; ++piece) {
            const Sums& one = sums()[piece];
            total.rr += one.rr;
            total.rz += one.rz;
            total.ps += one.ps;
            total.zs += one.zs;
            total.ss += one.ss;
        }
        turn_ = !turn_;
        return total;
    }
    Sums* sums() const { return sums_ + (turn_ ? grid_.pieces : 0); }

    System<T> system_;
    const Grid& grid_;
    const Vectors<T> vectors_;
    Sums* sums_;
    const Member member_;
    int64_t first_, last_, begin_, end_, inner_first_, inner_last_;
    bool turn_ = false;
};

}  // namespace energyml
