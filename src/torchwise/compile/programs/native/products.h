// Products of matrices that fit into the cache, with weights read where they lie.
//
// `a` has `m` rows of `k` numbers. Rows of `b` are outputs (`by_rows`, as nn.Linear keeps them) or inputs (`by_columns`).
#pragma once
#include "numbers.h"
#if defined(__FMA__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
const int BYTES = 64;
#elif defined(__AVX2__)
const int BYTES = 32;
#else
const int BYTES = 16;
#endif

template <class T, int N>
struct Lanes {
  typedef T type __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <class T>
const int LANES = BYTES / sizeof(T);

template <class T, int N>
inline typename Lanes<T, N>::type load(const T* from) {
  return *(const typename Lanes<T, N>::type*)from;
}

// The options forbid the compiler to fuse products and sums, as PyTorch's own operators do not. Its libraries do.
template <class V>
inline V multiply_add(V a, V b, V c) {
  return a * b + c;
}
#if defined(__FMA__)
#define FUSED(N, T, PACKED, FUNCTION)                                                                                 \
  inline Lanes<T, N>::type multiply_add(Lanes<T, N>::type a, Lanes<T, N>::type b, Lanes<T, N>::type c) {               \
    return (Lanes<T, N>::type)FUNCTION((PACKED)a, (PACKED)b, (PACKED)c);                                              \
  }
FUSED(4, float, __m128, _mm_fmadd_ps)
FUSED(2, double, __m128d, _mm_fmadd_pd)
FUSED(8, float, __m256, _mm256_fmadd_ps)
FUSED(4, double, __m256d, _mm256_fmadd_pd)
#if defined(__AVX512F__)
FUSED(16, float, __m512, _mm512_fmadd_ps)
FUSED(8, double, __m512d, _mm512_fmadd_pd)
#endif
#undef FUSED
#endif

template <class V, class T>
inline V spread(T x) {
  return x - V{};
}

template <class T, int N>
inline T sum_lanes(typename Lanes<T, N>::type v) {
  T parts[N];
  std::memcpy(parts, &v, sizeof(v));
  for (int n = N / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) parts[i] += parts[i + n];
  return parts[0];
}

// Outputs whose sums run along the lanes: for few rows, where reading the weights is all of the work.
template <class T, int OUTPUTS>
inline void dot_block(const T* a, const T* b, int64_t k, int64_t pitch, T* sums) {
  const int L = LANES<T>;
  typedef typename Lanes<T, L>::type V;
  V acc[OUTPUTS] = {};
  int64_t i = 0;
  for (; i + L <= k; i += L) {
    V x = load<T, L>(a + i);
#pragma GCC unroll 16
    for (int o = 0; o < OUTPUTS; ++o) acc[o] = multiply_add(x, load<T, L>(b + o * pitch + i), acc[o]);
  }
#pragma GCC unroll 16
  for (int o = 0; o < OUTPUTS; ++o) sums[o] = sum_lanes<T, L>(acc[o]);
  for (; i < k; ++i)
    for (int o = 0; o < OUTPUTS; ++o) sums[o] += a[i] * b[o * pitch + i];
}

// Many rows: they are turned, so that lanes are rows, and each weight is read once for all of them.
template <class T, int VECTORS, int OUTPUTS>
inline void turned_block(const T* turned, const T* b, int64_t k, int64_t b_pitch, T* tile) {
  const int L = LANES<T>;
  typedef typename Lanes<T, L>::type V;
  V acc[OUTPUTS][VECTORS] = {};
  for (int64_t i = 0; i < k; ++i) {
    V x[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) x[v] = load<T, L>(turned + (i * VECTORS + v) * L);
#pragma GCC unroll 8
    for (int o = 0; o < OUTPUTS; ++o) {
      V w = spread<V>(b[o * b_pitch + i]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) acc[o][v] = multiply_add(w, x[v], acc[o][v]);
    }
  }
  for (int o = 0; o < OUTPUTS; ++o)
    for (int v = 0; v < VECTORS; ++v) std::memcpy(tile + (o * VECTORS + v) * L, &acc[o][v], sizeof(V));
}

// Numbers of two vectors by their places. Clang has no function for it, and makes the same instructions of the loop.
template <class V, class M>
inline V shuffle(V a, V b, M places, int lanes) {
#if defined(__clang__)
  V made = a;
#pragma GCC unroll 16
  for (int j = 0; j < lanes; ++j) made[j] = places[j] < lanes ? a[places[j]] : b[places[j] - lanes];
  return made;
#else
  return __builtin_shuffle(a, b, places);
#endif
}

// Turns a square of numbers in registers, in log2(LANES) steps.
template <class T>
inline void turn_square(typename Lanes<T, LANES<T>>::type* rows) {
  const int L = LANES<T>;
  typedef typename Lanes<T, L>::type V;
  typedef decltype(V{} < V{}) M;
#pragma GCC unroll 8
  for (int step = 1; step < L; step *= 2) {
    M low, high;
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j) {
      low[j] = (j & step) ? L + j - step : j;
      high[j] = (j & step) ? L + j : j + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i)
      if (!(i & step)) {
        V a = rows[i], b = rows[i + step];
        rows[i] = shuffle<V>(a, b, low, L);
        rows[i + step] = shuffle<V>(a, b, high, L);
      }
  }
}

// Adds up the lanes of as many vectors as they have lanes: the first one has all sums, in order.
template <class T>
inline void add_lanes(typename Lanes<T, LANES<T>>::type* rows) {
  const int L = LANES<T>;
  typedef typename Lanes<T, L>::type V;
  typedef decltype(V{} < V{}) M;
#pragma GCC unroll 8
  for (int step = 1; step < L; step *= 2) {
    M low, high;
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j) {
      low[j] = (j & step) ? L + j - step : j;
      high[j] = (j & step) ? L + j : j + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; i += 2 * step)
      rows[i] = shuffle<V>(rows[i], rows[i + step], low, L) + shuffle<V>(rows[i], rows[i + step], high, L);
  }
}

// As many outputs as a vector has lanes.
template <class T>
inline void dot_square(const T* a, const T* b, int64_t k, int64_t pitch, const T* bias, T* out) {
  const int L = LANES<T>;
  typedef typename Lanes<T, L>::type V;
  V acc[L] = {};
  int64_t i = 0;
  for (; i + L <= k; i += L) {
    V x = load<T, L>(a + i);
#pragma GCC unroll 16
    for (int o = 0; o < L; ++o) acc[o] = multiply_add(x, load<T, L>(b + o * pitch + i), acc[o]);
  }
  add_lanes<T>(acc);
  T sums[L];
  std::memcpy(sums, acc, sizeof(V));
  for (; i < k; ++i)
    for (int o = 0; o < L; ++o) sums[o] += a[i] * b[o * pitch + i];
  for (int o = 0; o < L; ++o) out[o] = bias ? sums[o] + bias[o] : sums[o];
}

template <class T>
inline void dots(const T* a, const T* b, int64_t n, int64_t k, int64_t b_pitch, const T* bias, T* out) {
  const int L = LANES<T>;
  int64_t o = 0;
  for (; o + L <= n; o += L) dot_square(a, b + o * b_pitch, k, b_pitch, bias ? bias + o : nullptr, out + o);
  if (o < n && n >= L) {  // the last ones with some that are known
    o = n - L;
    dot_square(a, b + o * b_pitch, k, b_pitch, bias ? bias + o : nullptr, out + o);
    return;
  }
  for (; o + 8 <= n; o += 8) {
    T sums[8];
    dot_block<T, 8>(a, b + o * b_pitch, k, b_pitch, sums);
    for (int i = 0; i < 8; ++i) out[o + i] = bias ? sums[i] + bias[o + i] : sums[i];
  }
  for (; o < n; ++o) {
    T sum;
    dot_block<T, 1>(a, b + o * b_pitch, k, b_pitch, &sum);
    out[o] = bias ? sum + bias[o] : sum;
  }
}

const int64_t LONGEST = 4096;  // of `k`, which the generator keeps

template <class T, int VECTORS>
inline void turn_rows(const T* a, int64_t m, int64_t k, int64_t a_pitch, T* turned) {
  const int L = LANES<T>;
  typedef typename Lanes<T, L>::type V;
  for (int v = 0; v < VECTORS; ++v) {
    int64_t i = 0;
    for (; i + L <= k; i += L) {
      V rows[L];
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) rows[r] = v * L + r < m ? load<T, L>(a + (v * L + r) * a_pitch + i) : V{};
      turn_square<T>(rows);
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) std::memcpy(turned + ((i + r) * VECTORS + v) * L, rows + r, sizeof(V));
    }
    for (; i < k; ++i)
      for (int r = 0; r < L; ++r) turned[(i * VECTORS + v) * L + r] = v * L + r < m ? a[(v * L + r) * a_pitch + i] : (T)0;
  }
}

template <class T, int VECTORS>
inline void turned_rows(const T* a, const T* b, int64_t m, int64_t n, int64_t k, int64_t a_pitch, int64_t b_pitch,
                        const T* bias, T* out, int64_t out_pitch, T* turned) {
  const int L = LANES<T>, AT_ONCE = L < 8 ? L : 8;
  typedef typename Lanes<T, L>::type V;
  const int64_t WIDE = L * VECTORS;
  alignas(64) T tile[L * L * VECTORS];
  turn_rows<T, VECTORS>(a, m, k, a_pitch, turned);
  int64_t o = 0;
  for (; o + L <= n; o += L) {
    for (int part = 0; part < L; part += AT_ONCE)
      turned_block<T, VECTORS, AT_ONCE>(turned, b + (o + part) * b_pitch, k, b_pitch, tile + part * WIDE);
    V added = bias ? load<T, L>(bias + o) : V{};
    for (int v = 0; v < VECTORS; ++v) {
      V rows[L];
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) rows[r] = load<T, L>(tile + (r * VECTORS + v) * L);
      turn_square<T>(rows);
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r)
        if (v * L + r < m) {
          V sum = rows[r] + added;
          std::memcpy(out + (v * L + r) * out_pitch + o, &sum, sizeof(V));
        }
    }
  }
  auto store = [&](int outputs) {
    for (int64_t row = 0; row < m; ++row)
      for (int i = 0; i < outputs; ++i)
        out[row * out_pitch + o + i] = tile[i * WIDE + row] + (bias ? bias[o + i] : (T)0);
  };
  for (; o + 4 <= n; o += 4) {
    turned_block<T, VECTORS, 4>(turned, b + o * b_pitch, k, b_pitch, tile);
    store(4);
  }
  for (; o < n; ++o) {
    turned_block<T, VECTORS, 1>(turned, b + o * b_pitch, k, b_pitch, tile);
    store(1);
  }
}

template <class T>
static __attribute__((noinline)) int product_by_rows(const T* a, const T* b, const T* bias, int64_t m, int64_t n,
                                                     int64_t k, int64_t a_pitch, int64_t b_pitch, T* out) {
  const int L = LANES<T>;
  // Adding up lanes takes some 14 cycles an output and row, and turning rows as long as a product of 16 of them.
  if (k >= L ? 24 * (m - 1) <= k : m * n * k < 256) {
    for (int64_t row = 0; row < m; ++row) dots(a + row * a_pitch, b, n, k, b_pitch, bias, out + row * n);
    return 0;
  }
  static thread_local T turned[LONGEST * 128 / sizeof(T)];
  for (int64_t row = 0; row < m;) {
    int64_t left = m - row;
    const T* from = a + row * a_pitch;
    if (left > L) {
      int64_t now = left < 2 * L ? left : 2 * L;
      turned_rows<T, 2>(from, b, now, n, k, a_pitch, b_pitch, bias, out + row * n, n, turned);
      row += now;
    } else {
      turned_rows<T, 1>(from, b, left, n, k, a_pitch, b_pitch, bias, out + row * n, n, turned);
      row += left;
    }
  }
  return 0;
}

template <class T, int ROWS_, int L, int VECTORS>
inline void column_block(const T* a, const T* b, int64_t k, int64_t a_pitch, int64_t b_pitch, const T* bias, T* out,
                         int64_t out_pitch) {
  typedef typename Lanes<T, L>::type V;
  V acc[ROWS_][VECTORS];
  for (int r = 0; r < ROWS_; ++r)
    for (int v = 0; v < VECTORS; ++v) acc[r][v] = bias ? load<T, L>(bias + v * L) : V{};
  for (int64_t i = 0; i < k; ++i) {
    V w[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) w[v] = load<T, L>(b + i * b_pitch + v * L);
#pragma GCC unroll 4
    for (int r = 0; r < ROWS_; ++r) {
      V x = spread<V>(a[r * a_pitch + i]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) acc[r][v] = multiply_add(x, w[v], acc[r][v]);
    }
  }
  for (int r = 0; r < ROWS_; ++r)
    for (int v = 0; v < VECTORS; ++v) std::memcpy(out + r * out_pitch + v * L, &acc[r][v], sizeof(V));
}

template <class T, int ROWS_>
inline void column_rows(const T* a, const T* b, const T* bias, int64_t n, int64_t k, int64_t a_pitch, int64_t b_pitch,
                        T* out) {
  const int L = LANES<T>;
  int64_t o = 0;
#define BLOCK(LANES_, VECTORS)                                                                                        \
  for (; o + LANES_ * VECTORS <= n; o += LANES_ * VECTORS)                                                            \
    column_block<T, ROWS_, LANES_, VECTORS>(a, b + o, k, a_pitch, b_pitch, bias ? bias + o : nullptr, out + o, n);
  BLOCK(L, 4)
  BLOCK(L, 1)
  BLOCK(2, 1)
#undef BLOCK
  for (; o < n; ++o)
    for (int r = 0; r < ROWS_; ++r) {
      T sum = bias ? bias[o] : (T)0;
      for (int64_t i = 0; i < k; ++i) sum += a[r * a_pitch + i] * b[i * b_pitch + o];
      out[r * n + o] = sum;
    }
}

template <class T>
static __attribute__((noinline)) int product_by_columns(const T* a, const T* b, const T* bias, int64_t m, int64_t n,
                                                        int64_t k, int64_t a_pitch, int64_t b_pitch, T* out) {
  int64_t row = 0;
  for (; row + 4 <= m; row += 4) column_rows<T, 4>(a + row * a_pitch, b, bias, n, k, a_pitch, b_pitch, out + row * n);
  for (; row < m; ++row) column_rows<T, 1>(a + row * a_pitch, b, bias, n, k, a_pitch, b_pitch, out + row * n);
  return 0;
}

// The products of `count` pairs of matrices, which lie `a_step` and `b_step` numbers apart.
template <class T, bool BY_ROWS>
static __attribute__((noinline)) int many_products(const T* a, const T* b, int64_t m, int64_t n, int64_t k,
                                                   int64_t a_pitch, int64_t b_pitch, int64_t count, int64_t a_step,
                                                   int64_t b_step, T* out) {
  for (int64_t i = 0; i < count; ++i, a += a_step, b += b_step, out += m * n) {
    if (BY_ROWS)
      product_by_rows<T>(a, b, nullptr, m, n, k, a_pitch, b_pitch, out);
    else
      product_by_columns<T>(a, b, nullptr, m, n, k, a_pitch, b_pitch, out);
  }
  return 0;
}

template <class T>
INLINE T fuse(T a, T b, T c) {
#if defined(__FMA__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// The same for small matrices, whose sizes the compiler knows, so that it unrolls their loops.
template <class T, bool BY_ROWS, int M, int N, int K>
static __attribute__((noinline)) int small_products(const T* a, const T* b, int64_t a_pitch, int64_t b_pitch,
                                                    int64_t count, int64_t a_step, int64_t b_step, T* out) {
  for (int64_t i = 0; i < count; ++i, a += a_step, b += b_step, out += M * N) {
    T turned[K * N];
    if (BY_ROWS)
      for (int k = 0; k < K; ++k)
        for (int n = 0; n < N; ++n) turned[k * N + n] = b[n * b_pitch + k];
    const T* from = BY_ROWS ? turned : b;
    const int64_t pitch = BY_ROWS ? N : b_pitch;
    for (int m = 0; m < M; ++m) {
      T sums[N] = {};
      for (int k = 0; k < K; ++k)
#pragma omp simd
        for (int n = 0; n < N; ++n) sums[n] = fuse(a[m * a_pitch + k], from[k * pitch + n], sums[n]);
      for (int n = 0; n < N; ++n) out[m * N + n] = sums[n];
    }
  }
  return 0;
}

// Inverses of square matrices, by elimination with the largest pivot of each column.
template <class T>
static __attribute__((noinline)) int inverses(const T* a, int64_t count, int64_t n, T* out) {
  double left[16][32];  // the generator keeps n at most 16
  for (int64_t one = 0; one < count; ++one, a += n * n, out += n * n) {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        left[i][j] = a[i * n + j];
        left[i][n + j] = i == j;
      }
    for (int64_t c = 0; c < n; ++c) {
      int64_t best = c;
      for (int64_t i = c + 1; i < n; ++i)
        if (__builtin_fabs(left[i][c]) > __builtin_fabs(left[best][c])) best = i;
      if (!(__builtin_fabs(left[best][c]) > 1e-30)) return 1;  // singular, or NaN: PyTorch has its answer, or error
      for (int64_t j = 0; j < 2 * n; ++j) {
        double kept = left[c][j];
        left[c][j] = left[best][j];
        left[best][j] = kept;
      }
      double scale = 1.0 / left[c][c];
      for (int64_t j = c; j < 2 * n; ++j) left[c][j] *= scale;
      for (int64_t i = 0; i < n; ++i) {
        double factor = left[i][c];
        if (i != c)
          for (int64_t j = c; j < 2 * n; ++j) left[i][j] -= factor * left[c][j];
      }
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) out[i * n + j] = (T)left[i][n + j];
  }
  return 0;
}

}  // namespace
