#pragma once

// Symbolic tensors of the planner's host: geometry and a reference-counted storage, no data. When
// the last reference to a storage goes, its buffer is freed in the program at that very point, as
// CPython and autograd would do it.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

#include "core/dtype.h"
#include "core/error.h"
#include "schedules/schedule.h"

namespace foreshard {

class Host;
class HostImpl;
struct AutogradNode;

/// Intrusive pointer; T has `refs` and a free function `destroy(T*)`.
template <typename T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* p) : p_(p) {
    if (p_) ++p_->refs;
  }
  Ref(const Ref& o) : p_(o.p_) {
    if (p_) ++p_->refs;
  }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(const Ref& o) { return *this = Ref(o); }
  Ref& operator=(Ref&& o) noexcept {
    T* const old = std::exchange(p_, std::exchange(o.p_, nullptr));
    if (old) drop(old);
    return *this;
  }
  ~Ref() {
    if (p_) drop(p_);
  }

  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  void reset() {
    if (T* const old = std::exchange(p_, nullptr)) drop(old);
  }
  bool operator==(const Ref&) const = default;

 private:
  static void drop(T* p) {
    if (--p->refs == 0) destroy(p);
  }
  T* p_ = nullptr;
};

/// A graph file asks for dimensions that no tensor has.
class DimensionError : public InputError {
 public:
  using InputError::InputError;
};
[[noreturn]] void refuse_rank(std::size_t rank);
[[noreturn]] void refuse_dimension(int dimension, int rank);

/// Shape of a tensor; at most kMaxRank dimensions.
struct Shape {
  std::array<std::int64_t, kMaxRank> dim{};
  std::uint8_t rank = 0;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> d) : Shape(std::span(d.begin(), d.size())) {}
  explicit Shape(std::span<const std::int64_t> d) {
    for (const std::int64_t size : d) append(size);
  }
  void append(std::int64_t size) {
    if (rank == kMaxRank) refuse_rank(kMaxRank + 1);
    dim[rank++] = size;
  }
  /// The place of dimension `i`; negative ones count from the end.
  std::size_t index(int i) const {
    const int d = i < 0 ? i + rank : i;
    if (d < 0 || d >= rank) refuse_dimension(i, rank);
    return static_cast<std::size_t>(d);
  }
  std::int64_t operator[](int i) const { return dim[index(i)]; }
  std::int64_t& operator[](int i) { return dim[index(i)]; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[static_cast<std::size_t>(i)];
    return n;
  }
  bool operator==(const Shape&) const = default;
};

/// Memory behind one or several tensors. `buffer` is invalid while nothing is allocated (a storage
/// resized to zero).
struct SymStorage {
  std::uint32_t refs = 0;
  std::uint32_t generation =
      0;  ///< Counts allocations: tensors cache their TensorId per generation.
  Host* host = nullptr;
  BufferId buffer;
  std::int64_t bytes = 0;  ///< Size when allocated.
  StreamIndex pool = 0;
  MemorySpace space = MemorySpace::kDevice;
  BufferCategory category = BufferCategory::kActivation;
  UnitId unit;
  ScopeId scope;
  std::uint32_t name = 0;
};
void destroy(SymStorage* s);

struct SymTensorImpl;
void destroy(SymTensorImpl* t);
void destroy(AutogradNode* n);

/// Handle of a symbolic tensor, as a Python variable is: copying it makes another reference to the
/// same object.
using SymTensor = Ref<SymTensorImpl>;

/// One tensor object: a view of a storage and its autograd metadata.
struct SymTensorImpl {
  std::uint32_t refs = 0;
  DType dtype = DType::kFloat32;
  bool requires_grad = false;  ///< Leaf that asks for a gradient, or result of a recorded function.
  std::int8_t grad_dtype =
      -1;  ///< DType that gradients are cast to when accumulated, or as in grad_dtype.h.
  std::uint16_t output_nr = 0;  ///< Which output of grad_fn.
  std::uint32_t version = 0;    ///< In-place changes, for the autocast cache.
  HostImpl* impl = nullptr;
  Ref<SymStorage> storage;
  Shape shape;
  std::array<std::int64_t, kMaxRank> stride{};
  std::int64_t offset = 0;           ///< Elements from the start of the storage.
  std::int64_t offset_per_rank = 0;  ///< Bytes; with `group`, see Tensor::offset_per_rank.
  GroupId group;
  std::int64_t numel = 0;
  Ref<AutogradNode> grad_fn;
  AutogradNode* grad_accumulator =
      nullptr;     ///< Of a leaf; owned by the graph (and by hooks' owners), not by the tensor.
  SymTensor grad;  ///< Of a leaf.
  SymTensor base;  ///< Tensor that a recorded view was taken from, while the view lives.
  /// Of 8-bit data that say a wider dtype (Float8TrainingTensor); views hold it, too.
  SymTensor scale;
  TensorId id;  ///< Entry in the program's table, valid for `id_generation` only.
  std::uint32_t id_generation = UINT32_MAX;

  bool is_leaf() const { return !grad_fn; }
  std::int64_t bytes() const { return numel * size_of(dtype); }
};

/// True if strides are those of a row-major tensor (dimensions of size 1 do not matter).
bool is_contiguous(const SymTensorImpl& t);
/// Row-major strides of a shape.
std::array<std::int64_t, kMaxRank> contiguous_strides(const Shape& s);

}  // namespace foreshard
