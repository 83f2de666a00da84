#pragma once

// Storage types of 16 bits: widening and rounding to nearest even. Plain functions without library
// calls, so that one body serves host and device compilers.

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define FORESHARD_DEVICE __host__ __device__ inline
#else
#define FORESHARD_DEVICE inline
#endif

namespace foreshard {

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

FORESHARD_DEVICE std::uint32_t float_bits(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  return u;
}
FORESHARD_DEVICE float bits_float(std::uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

FORESHARD_DEVICE float widen(BFloat16 v) {
  return bits_float(static_cast<std::uint32_t>(v.bits) << 16);
}

FORESHARD_DEVICE BFloat16 round_to_bfloat16(float f) {
  const std::uint32_t u = float_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

FORESHARD_DEVICE float widen(Float16 v) {
  const std::uint32_t sign = static_cast<std::uint32_t>(v.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = v.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {  // subnormal: magnitude * 2^-24, exact in fp32
    const float f = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    return bits_float(sign | float_bits(f));
  }
  return bits_float(sign | ((magnitude << 13) + (112u << 23)));
}

FORESHARD_DEVICE Float16 round_to_float16(float f) {
  const std::uint32_t u = float_bits(f);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (a >= 0x477ff000u)
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and more round to infinity
  if (a < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the last bit with 2^-24 and rounds to
                          // nearest even
    const std::uint32_t r = float_bits(bits_float(a) + 0.5f) - 0x3f000000u;
    return {static_cast<std::uint16_t>(sign | r)};
  }
  const std::uint32_t r = a - (112u << 23);
  return {static_cast<std::uint16_t>(sign | ((r + 0xfffu + ((r >> 13) & 1u)) >> 13))};
}

FORESHARD_DEVICE float widen(float v) { return v; }
FORESHARD_DEVICE float widen(double v) { return static_cast<float>(v); }
FORESHARD_DEVICE float widen(std::int64_t v) { return static_cast<float>(v); }
FORESHARD_DEVICE float widen(std::int32_t v) { return static_cast<float>(v); }
FORESHARD_DEVICE float widen(std::uint8_t v) { return static_cast<float>(v); }

FORESHARD_DEVICE void narrow(float f, float* out) { *out = f; }
FORESHARD_DEVICE void narrow(float f, double* out) { *out = static_cast<double>(f); }
FORESHARD_DEVICE void narrow(float f, BFloat16* out) { *out = round_to_bfloat16(f); }
FORESHARD_DEVICE void narrow(float f, Float16* out) { *out = round_to_float16(f); }
FORESHARD_DEVICE void narrow(float f, std::int64_t* out) { *out = static_cast<std::int64_t>(f); }
FORESHARD_DEVICE void narrow(float f, std::int32_t* out) { *out = static_cast<std::int32_t>(f); }
FORESHARD_DEVICE void narrow(float f, std::uint8_t* out) { *out = static_cast<std::uint8_t>(f); }

}  // namespace foreshard
