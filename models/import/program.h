#pragma once

// Writing forward programs tersely. Statements read like the Python they stand for:
//   h = p.add("residual", p.call(mlp, {"h"}), "h");

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "models/module_tree.h"

namespace foreshard {

/// Writes the program of one module. A value is its name; names given as `out` are the Python
/// locals (assigning one again drops the old value), an empty `out` makes a temporary "%n", which
/// nobody holds after its use. Holds the module's id, not a pointer: other modules may be added in
/// between.
class Program {
 public:
  using Value = std::string;

  Program(ModelBuilder& builder, ModuleId module, const std::vector<std::string>& inputs);

  Value op(Function f, const std::vector<Value>& inputs, const Value& out = {});
  Value op_ints(Function f, const std::vector<Value>& inputs, std::vector<std::int64_t> ints,
                const Value& out = {});
  std::vector<Value> ops(Function f, const std::vector<Value>& inputs,
                         std::vector<std::int64_t> ints, const std::vector<Value>& outs);
  /// Call of a child with one result, or with several.
  Value call(ModuleId child, const std::vector<Value>& inputs, const Value& out = {});
  void call_all(ModuleId child, const std::vector<Value>& inputs, const std::vector<Value>& outs);

  Value add(const Value& a, const Value& b, const Value& out = {}) {
    return op(Function::kAdd, {a, b}, out);
  }
  Value mul(const Value& a, const Value& b, const Value& out = {}) {
    return op(Function::kMul, {a, b}, out);
  }
  Value add_scalar(const Value& a, double value, const Value& out = {}) {
    return scalar(Function::kAddScalar, a, value, out);
  }
  Value mul_scalar(const Value& a, double value, const Value& out = {}) {
    return scalar(Function::kMulScalar, a, value, out);
  }
  Value pow(const Value& a, double exponent, const Value& out = {}) {
    return scalar(Function::kPowScalar, a, exponent, out);
  }
  Value scalar(Function f, const Value& a, double value, const Value& out = {});
  Value cast(const Value& a, DType dtype, const Value& out = {});
  /// To the dtype of another value, which is not read otherwise.
  Value cast_like(const Value& a, const Value& like, const Value& out = {}) {
    return op(Function::kCast, {a, like}, out);
  }
  Value softmax(const Value& a, DType dtype, const Value& out = {});
  /// Nothing at all where p is 0, as in the library.
  Value dropout(const Value& a, double p, const Value& out = {});
  Value view(const Value& a, std::vector<std::int64_t> shape, const Value& out = {}) {
    return op_ints(Function::kView, {a}, std::move(shape), out);
  }
  Value reshape(const Value& a, std::vector<std::int64_t> shape, const Value& out = {}) {
    return op_ints(Function::kReshape, {a}, std::move(shape), out);
  }
  Value transpose(const Value& a, std::int64_t i, std::int64_t j, const Value& out = {}) {
    return op_ints(Function::kTranspose, {a}, {i, j}, out);
  }
  Value slice(const Value& a, std::int64_t dim, std::int64_t start, std::int64_t end,
              const Value& out = {}) {
    return op_ints(Function::kSlice, {a}, {dim, start, end}, out);
  }
  Value select(const Value& a, std::int64_t dim, std::int64_t index, const Value& out = {}) {
    return op_ints(Function::kSelect, {a}, {dim, index}, out);
  }
  Value cat(const std::vector<Value>& parts, std::int64_t dim, const Value& out = {}) {
    return op_ints(Function::kCat, parts, {dim}, out);
  }
  /// A parameter of this module as a value.
  Value parameter(ParameterId id, const Value& out = {});
  /// The last statement, for what the helpers do not set.
  Statement& last() { return builder_.model().at(module_).program.back(); }
  void returns(const std::vector<Value>& outputs);

  ModelBuilder& builder() { return builder_; }
  ModuleId module() const { return module_; }

 private:
  Value name_or_temporary(const Value& out);

  ModelBuilder& builder_;
  ModuleId module_;
  std::vector<std::string> inputs_;
  int temporaries_ = 0;
};

}  // namespace foreshard
