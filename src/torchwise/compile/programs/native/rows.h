// Work on rows of numbers that lie next to each other: sums, norms, softmax, and rows taken from tables.
//
// `count` rows of `width` numbers each, `pitch` numbers apart. Results of rows are written without gaps.
#pragma once
#include "numbers.h"

namespace {

const int64_t CHUNK = 128;   // numbers that are summed in their own precision, in lanes, before a double takes over
const int PARTS = 16;

template <class T, class F>
inline double sum_of(int64_t width, F term) {
  double total = 0;
  int64_t i = 0;
  while (i + PARTS <= width) {
    T parts[PARTS] = {};
    int64_t to = i + CHUNK < width ? i + CHUNK : width;
    for (; i + PARTS <= to; i += PARTS)
#pragma omp simd
      for (int lane = 0; lane < PARTS; ++lane) parts[lane] += term(i + lane);
    for (int lane = 0; lane < PARTS; ++lane) total += parts[lane];
  }
  for (; i < width; ++i) total += term(i);
  return total;
}

template <class T>
inline T largest_of(const T* x, int64_t width) {
  T most = x[0];
  int nan = 0;
#pragma omp simd reduction(max : most) reduction(| : nan)
  for (int64_t i = 0; i < width; ++i) {
    nan |= x[i] != x[i];
    most = x[i] > most ? x[i] : most;
  }
  return nan ? (T)__builtin_nan("") : most;
}

template <class T>
inline T smallest_of(const T* x, int64_t width) {
  T least = x[0];
  int nan = 0;
#pragma omp simd reduction(min : least) reduction(| : nan)
  for (int64_t i = 0; i < width; ++i) {
    nan |= x[i] != x[i];
    least = x[i] < least ? x[i] : least;
  }
  return nan ? (T)__builtin_nan("") : least;
}

#define ROWS static __attribute__((noinline)) int

template <class T>
ROWS sum_rows(const T* x, int64_t count, int64_t width, int64_t pitch, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch) out[row] = (T)sum_of<T>(width, [x](int64_t i) { return x[i]; });
  return 0;
}

// Integers that overflow begin again, as in PyTorch.
template <class T>
ROWS sum_whole_rows(const T* x, int64_t count, int64_t width, int64_t pitch, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch) {
    int64_t total = 0;
    for (int64_t i = 0; i < width; ++i) total += x[i];
    out[row] = (T)total;
  }
  return 0;
}

template <class T>
ROWS mean_rows(const T* x, int64_t count, int64_t width, int64_t pitch, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch)
    out[row] = (T)(sum_of<T>(width, [x](int64_t i) { return x[i]; }) / (double)width);
  return 0;
}

template <class T>
ROWS var_rows(const T* x, int64_t count, int64_t width, int64_t pitch, double correction, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch) {
    T mean = (T)(sum_of<T>(width, [x](int64_t i) { return x[i]; }) / (double)width);
    double square = sum_of<T>(width, [x, mean](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
    double left = (double)width - correction;
    out[row] = (T)(square / (left > 0 ? left : 0.0));
  }
  return 0;
}

template <class T>
ROWS amax_rows(const T* x, int64_t count, int64_t width, int64_t pitch, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch) out[row] = largest_of(x, width);
  return 0;
}

template <class T>
ROWS amin_rows(const T* x, int64_t count, int64_t width, int64_t pitch, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch) out[row] = smallest_of(x, width);
  return 0;
}

template <class T>
ROWS argmax_rows(const T* x, int64_t count, int64_t width, int64_t pitch, int64_t* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch) {
    int64_t at = 0;
    for (int64_t i = 1; i < width; ++i)
      if (x[at] == x[at] && (x[i] > x[at] || x[i] != x[i])) at = i;
    out[row] = at;
  }
  return 0;
}

template <class T>
ROWS any_rows(const T* x, int64_t count, int64_t width, int64_t pitch, bool* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch) {
    int any = 0;
    for (int64_t i = 0; i < width; ++i) any |= x[i] != 0;
    out[row] = any != 0;
  }
  return 0;
}

template <class T>
ROWS softmax_rows(const T* x, int64_t count, int64_t width, int64_t pitch, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch, out += width) {
    T most = largest_of(x, width);
    for (int64_t i = 0; i < width; ++i) out[i] = exp_of(x[i] - most);
    const T* made = out;
    T scale = (T)(1.0 / sum_of<T>(width, [made](int64_t i) { return made[i]; }));
    for (int64_t i = 0; i < width; ++i) out[i] *= scale;
  }
  return 0;
}

// Softmax of short rows, whose width the compiler knows: vectors run over the rows, which are turned in blocks.
template <class T, int WIDTH>
ROWS softmax_short(const T* x, int64_t count, int64_t pitch, T* out) {
  for (int64_t row = 0; row < count; row += PARTS, x += PARTS * pitch, out += PARTS * WIDTH) {
    const int rows = count - row < PARTS ? (int)(count - row) : PARTS;
    T turned[WIDTH][PARTS] = {}, most[PARTS], total[PARTS] = {};
    for (int lane = 0; lane < rows; ++lane)
      for (int i = 0; i < WIDTH; ++i) turned[i][lane] = x[lane * pitch + i];
    for (int lane = 0; lane < PARTS; ++lane) most[lane] = turned[0][lane];
    for (int i = 1; i < WIDTH; ++i)
#pragma omp simd
      for (int lane = 0; lane < PARTS; ++lane) most[lane] = turned[i][lane] > most[lane] ? turned[i][lane] : most[lane];
    for (int i = 0; i < WIDTH; ++i)
#pragma omp simd
      for (int lane = 0; lane < PARTS; ++lane) {
        turned[i][lane] = exp_of(turned[i][lane] - most[lane]);
        total[lane] += turned[i][lane];
      }
#pragma omp simd
    for (int lane = 0; lane < PARTS; ++lane) total[lane] = (T)1 / total[lane];
    for (int lane = 0; lane < rows; ++lane)
      for (int i = 0; i < WIDTH; ++i) out[lane * WIDTH + i] = turned[i][lane] * total[lane];
  }
  return 0;
}

template <class T>
ROWS log_softmax_rows(const T* x, int64_t count, int64_t width, int64_t pitch, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch, out += width) {
    T most = largest_of(x, width);
    T log = (T)std::log(sum_of<T>(width, [x, most](int64_t i) { return exp_of(x[i] - most); }));
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] - most - log;
  }
  return 0;
}

template <class T>
ROWS norm_rows(const T* x, int64_t count, int64_t width, int64_t pitch, const T* weight, const T* bias, double eps,
               T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch, out += width) {
    T mean = (T)(sum_of<T>(width, [x](int64_t i) { return x[i]; }) / (double)width);
    double square = sum_of<T>(width, [x, mean](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
    T scale = (T)(1.0 / std::sqrt(square / (double)width + eps));
    if (weight && bias)
      for (int64_t i = 0; i < width; ++i) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    else
      for (int64_t i = 0; i < width; ++i)
        out[i] = (x[i] - mean) * scale * (weight ? weight[i] : (T)1) + (bias ? bias[i] : (T)0);
  }
  return 0;
}

template <class T, class I>
ROWS take_rows(const T* table, int64_t rows, int64_t width, int64_t pitch, const I* index, int64_t count, bool wraps,
               T* out) {
  for (int64_t i = 0; i < count; ++i, out += width) {
    int64_t at = index[i];
    if (wraps && at < 0) at += rows;
    if (at < 0 || at >= rows) return 1;  // PyTorch's own operator raises its error
    std::memcpy(out, table + at * pitch, sizeof(T) * width);
  }
  return 0;
}

template <class T>
ROWS gather_rows(const T* x, int64_t count, int64_t width, int64_t pitch, const int64_t* index, int64_t taken, T* out) {
  for (int64_t row = 0; row < count; ++row, x += pitch)
    for (int64_t i = 0; i < taken; ++i) {
      int64_t at = *index++;
      if (at < 0 || at >= width) return 1;
      *out++ = x[at];
    }
  return 0;
}

template <class T, class I>
ROWS bag_rows(const T* table, int64_t rows, int64_t width, int64_t pitch, const I* index, int64_t taken,
              const I* offsets, int64_t bags, bool is_mean, T* out) {
  if (bags > 0 && offsets[0] != 0) return 1;
  for (int64_t bag = 0; bag < bags; ++bag, out += width) {
    int64_t from = offsets[bag], to = bag + 1 < bags ? (int64_t)offsets[bag + 1] : taken;
    if (from < 0 || to < from || to > taken) return 1;
    for (int64_t i = 0; i < width; ++i) out[i] = 0;
    for (int64_t place = from; place < to; ++place) {
      int64_t at = index[place];
      if (at < 0 || at >= rows) return 1;
      const T* row = table + at * pitch;
      for (int64_t i = 0; i < width; ++i) out[i] += row[i];
    }
    if (is_mean && to > from) {
      T number = (T)(to - from);
      for (int64_t i = 0; i < width; ++i) out[i] /= number;
    }
  }
  return 0;
}

}  // namespace
