// Functions of one number, written so that the compiler vectorizes the loops that call them.
//
// For float they are polynomials without branches, with errors of one or two units in the last place. NaN and infinity
// come out as in the C library, which computes those for double.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

// A call in a loop would keep it from being vectorized, and compilers stop inlining after some fifteen of them.
#define INLINE inline __attribute__((always_inline))

namespace {

template <class To, class From>
INLINE To bits(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

INLINE float power_of_two(int n) { return bits<float>((n + 127) << 23); }

INLINE float exp_series(float r) {  // (exp(r) - 1 - r) / r^2 (Cephes)
  float p = 1.9875691500e-4f;
  p = fused(p, r, 1.3981999507e-3f);
  p = fused(p, r, 8.3334519073e-3f);
  p = fused(p, r, 4.1665795894e-2f);
  p = fused(p, r, 1.6666665459e-1f);
  return fused(p, r, 5.0000001201e-1f);
}

INLINE float exp_of(float x) {
  float c = x > 88.8f ? 88.8f : x;
  c = c < -104.0f ? -104.0f : c;
  float n = __builtin_rintf(c * 1.44269504088896341f);
  float r = fused(n, -0.693359375f, c);
  r = fused(n, 2.12194440e-4f, r);
  float y = fused(exp_series(r), r * r, r) + 1.0f;
  int whole = (int)n, half = whole >> 1;
  return y * power_of_two(half) * power_of_two(whole - half);
}

INLINE float expm1_of(float x) {
  float near = fused(exp_series(x), x * x, x);
  near = x == 0.0f ? x : near;
  return __builtin_fabsf(x) < 0.34f ? near : exp_of(x) - 1.0f;
}

INLINE float tanh_of(float x) {
  float a = __builtin_fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = fused(p, z, 2.06390887954e-2f);
  p = fused(p, z, -5.37397155531e-2f);
  p = fused(p, z, 1.33314422036e-1f);
  p = fused(p, z, -3.33332819422e-1f);
  float near = __builtin_copysignf(fused(p * z, x, x), x);
  float far = 1.0f - 2.0f / (exp_of(2.0f * a) + 1.0f);
  return a < 0.625f ? near : __builtin_copysignf(far, x);
}

INLINE float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

INLINE float log_of(float x) {  // Cephes
  bool tiny = x < 1.17549435e-38f;
  float s = tiny ? x * 8388608.0f : x;
  int i = bits<int>(s);
  int e = ((i >> 23) & 255) - 126 - (tiny ? 23 : 0);
  float m = bits<float>((i & 0x7fffff) | 0x3f000000);
  bool low = m < 0.707106781186547524f;
  float k = (float)(low ? e - 1 : e);
  m = low ? m + m - 1.0f : m - 1.0f;
  float z = m * m, p = 7.0376836292e-2f;
  p = fused(p, m, -1.1514610310e-1f);
  p = fused(p, m, 1.1676998740e-1f);
  p = fused(p, m, -1.2420140846e-1f);
  p = fused(p, m, 1.4249322787e-1f);
  p = fused(p, m, -1.6668057665e-1f);
  p = fused(p, m, 2.0000714765e-1f);
  p = fused(p, m, -2.4999993993e-1f);
  p = fused(p, m, 3.3333331174e-1f);
  float y = fused(k, -2.12194440e-4f, p * m * z);
  y = fused(z, -0.5f, y);
  float r = fused(k, 0.693359375f, m + y);
  r = x == __builtin_inff() ? x : r;
  r = x == 0.0f ? -__builtin_inff() : r;
  r = x < 0.0f ? __builtin_nanf("") : r;
  return x != x ? x : r;
}

INLINE float log1p_of(float x) {
  float u = 1.0f + x;
  float r = log_of(u) + (x - (u - 1.0f)) / u;
  r = x == __builtin_inff() ? x : r;
  r = u == 0.0f ? -__builtin_inff() : r;
  return u == 1.0f ? x : r;
}

INLINE float erf_of(float x) {  // polynomials by N. Juffa
  float t = __builtin_fabsf(x), s = x * x;
  float r = fused(-1.72853470e-5f, t, 3.83197126e-4f);
  float u = fused(-3.88396438e-3f, t, 2.42546219e-2f);
  r = fused(r, s, u);
  r = fused(r, t, -1.06777877e-1f);
  r = fused(r, t, -6.34846687e-1f);
  r = fused(r, t, -1.28717512e-1f);
  r = fused(r, t, -t);
  float far = __builtin_copysignf(1.0f - exp_of(t > 4.0f ? -20.0f : r), x);
  r = -5.96761703e-4f;
  r = fused(r, s, 4.99119423e-3f);
  r = fused(r, s, -2.67681349e-2f);
  r = fused(r, s, 1.12819925e-1f);
  r = fused(r, s, -3.76125336e-1f);
  r = fused(r, s, 1.28379166e-1f);
  r = fused(r, x, x);
  return t > 0.927734375f ? far : (x != x ? x : r);
}

const float WIDEST_ANGLE = 1e8f;  // beyond it PyTorch's own functions answer

INLINE void reduce_angle(float x, double& r, int& quadrant) {
  double n = __builtin_rint((double)x * 0.63661977236758134308);
  r = __builtin_fma(n, -1.57079632679489661923, (double)x);
  r = __builtin_fma(n, -6.123233995736766e-17, r);
  quadrant = (int)n;
}

INLINE float turn(double r, int quadrant) {
  double z = r * r;
  double sine = r + r * z * (-1.6666666664e-1 + z * (8.333333072e-3 + z * (-1.98408328e-4 + z * 2.75239710775e-6 )));
  double cosine = 1.0 + z * (-0.5 + z * (4.16666666666e-2 + z * (-1.38888888e-3 + z * (2.480158e-5 + z * -2.7557e-7))));
  double picked = (quadrant & 1) ? cosine : sine;
  return (float)((quadrant & 2) ? -picked : picked);
}

INLINE float sin_of(float x) {
  double r;
  int quadrant;
  reduce_angle(x, r, quadrant);
  float y = turn(r, quadrant);
  return x == 0.0f ? x : y;
}

INLINE float cos_of(float x) {
  double r;
  int quadrant;
  reduce_angle(x, r, quadrant);
  return turn(r, quadrant + 1);
}

INLINE bool is_wide(float x) { return __builtin_fabsf(x) > WIDEST_ANGLE; }  // infinity, too
INLINE bool is_wide(double) { return false; }

INLINE float hypot_of(float x, float y) {  // squares of floats neither overflow nor vanish as doubles
  float length = (float)__builtin_sqrt((double)x * x + (double)y * y), most = __builtin_huge_valf();
  return __builtin_fabsf(x) == most || __builtin_fabsf(y) == most ? most : length;
}

INLINE double hypot_of(double x, double y) { return std::hypot(x, y); }
INLINE double exp_of(double x) { return std::exp(x); }
INLINE double expm1_of(double x) { return std::expm1(x); }
INLINE double tanh_of(double x) { return std::tanh(x); }
INLINE double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }
// Philox 2x32 with seven rounds (Salmon et al., 2011: the fewest that pass all of TestU01), for a place in a stream.
INLINE void philox(int64_t seed, int stream, int64_t place, uint32_t& a, uint32_t& b) {
  uint32_t key = (uint32_t)seed;
  a = (uint32_t)place;
  b = (uint32_t)stream ^ (uint32_t)((uint64_t)seed >> 32);
#pragma GCC unroll 7
  for (int round = 0; round < 7; ++round) {
    uint64_t product = (uint64_t)0xD256D193u * a;
    a = (uint32_t)(product >> 32) ^ key ^ b;
    b = (uint32_t)product;
    key += 0x9E3779B9u;
  }
}

INLINE float uniform_of(int64_t seed, int stream, int64_t place) {  // in [0, 1)
  uint32_t first, second;
  philox(seed, stream, place, first, second);
  return (float)(int32_t)(first >> 8) * 0x1p-24f;
}

INLINE float normal_of(int64_t seed, int stream, int64_t place) {  // by Box and Muller
  uint32_t first, second;
  philox(seed, stream, place, first, second);
  float u = ((float)(int32_t)(first >> 8) + 1.0f) * 0x1p-24f;
  // The angle is an eighth of a turn at most, and two bits choose among its sine and cosine with both signs.
  float r = ((float)(int32_t)((second & 0x3fffffffu) >> 6) * 0x1p-24f - 0.5f) * 1.57079632679489662f, z = r * r;
  float sine = fused(fused(fused(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z, r, r);
  float cosine = fused(fused(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
  cosine = fused(cosine * z, z, fused(-0.5f, z, 1.0f));
  float picked = (int32_t)second < 0 ? sine : cosine;
  float radius = std::sqrt(-2.0f * log_of(u));
  return (second & 0x40000000u) ? -picked * radius : picked * radius;
}

INLINE double log_of(double x) { return std::log(x); }
INLINE double log1p_of(double x) { return std::log1p(x); }
INLINE double erf_of(double x) { return std::erf(x); }
INLINE double sin_of(double x) { return std::sin(x); }
INLINE double cos_of(double x) { return std::cos(x); }

template <class T>
INLINE T largest(T a, T b) {  // NaN of either comes out
  return a != a ? a : (b != b ? b : (a > b ? a : b));
}

template <class T>
INLINE T smallest(T a, T b) {
  return a != a ? a : (b != b ? b : (a < b ? a : b));
}

INLINE float absolute(float x) { return __builtin_fabsf(x); }
INLINE double absolute(double x) { return __builtin_fabs(x); }
template <class T>
INLINE T absolute(T x) {
  return x < 0 ? -x : x;
}

// What a CPU gives is given for NaN and numbers beyond the type, too, of which a compiler may make anything else.
template <class T>
INLINE int64_t whole_of(T x) {
  return x >= (T)-9223372036854775808.0 && x < (T)9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}

template <class T>
INLINE T sign_of(T x) {
  return (T)((x > 0) - (x < 0));
}

}  // namespace
