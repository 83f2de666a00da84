#include "models/import/program.h"

namespace foreshard {

Program::Program(ModelBuilder& builder, ModuleId module, const std::vector<std::string>& inputs)
    : builder_(builder), module_(module), inputs_(inputs) {
  builder_.set_signature(module_, inputs_, {});
}

Program::Value Program::name_or_temporary(const Value& out) {
  return out.empty() ? "%" + std::to_string(++temporaries_) : out;
}

Program::Value Program::op(Function f, const std::vector<Value>& inputs, const Value& out) {
  const Value name = name_or_temporary(out);
  builder_.add_statement(module_, f, inputs, {name});
  return name;
}

Program::Value Program::op_ints(Function f, const std::vector<Value>& inputs,
                                std::vector<std::int64_t> ints, const Value& out) {
  const Value name = name_or_temporary(out);
  builder_.add_statement(module_, f, inputs, {name}).ints = std::move(ints);
  return name;
}

std::vector<Program::Value> Program::ops(Function f, const std::vector<Value>& inputs,
                                         std::vector<std::int64_t> ints,
                                         const std::vector<Value>& outs) {
  std::vector<Value> names;
  for (const Value& out : outs) names.push_back(name_or_temporary(out));
  builder_.add_statement(module_, f, inputs, names).ints = std::move(ints);
  return names;
}

Program::Value Program::call(ModuleId child, const std::vector<Value>& inputs, const Value& out) {
  const Value name = name_or_temporary(out);
  builder_.call(module_, child, inputs, {name});
  return name;
}

void Program::call_all(ModuleId child, const std::vector<Value>& inputs,
                       const std::vector<Value>& outs) {
  builder_.call(module_, child, inputs, outs);
}

Program::Value Program::scalar(Function f, const Value& a, double value, const Value& out) {
  const Value name = op(f, {a}, out);
  last().floats = {value};
  return name;
}

Program::Value Program::cast(const Value& a, DType dtype, const Value& out) {
  const Value name = op(Function::kCast, {a}, out);
  last().dtype = dtype;
  return name;
}

Program::Value Program::softmax(const Value& a, DType dtype, const Value& out) {
  const Value name = op(Function::kSoftmax, {a}, out);
  last().dtype = dtype;
  return name;
}

Program::Value Program::dropout(const Value& a, double p, const Value& out) {
  if (p == 0.0 && out.empty()) return a;
  return scalar(Function::kDropout, a, p, out);
}

Program::Value Program::parameter(ParameterId id, const Value& out) {
  const Value name = op(Function::kParameter, {}, out);
  last().parameters = {id};
  return name;
}

void Program::returns(const std::vector<Value>& outputs) {
  builder_.set_signature(module_, inputs_, outputs);
}

}  // namespace foreshard
