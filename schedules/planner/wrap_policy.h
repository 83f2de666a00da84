#pragma once

// WrapPolicy (config.h): how it is written, and which modules it names in a model. A framework
// makes units of these groups by its own rules (fsdp2_policy.cc, fsdp1_policy.cc).

#include <string>
#include <string_view>
#include <vector>

#include "models/module_tree.h"
#include "schedules/planner/config.h"

namespace foreshard {

/// The texts that parse_wrap takes, for help and messages.
inline constexpr std::string_view kWrapForms =
    "blocks | blocks+adapters | every:K | root | size:N | modules:a,b,c";

/// kWrapForms without the one that a framework does not take: "every:K".
std::string wrap_forms_without(std::string_view form);

/// Sets what the text says; the rest of `policy` stays. InputError for "--wrap" if it is none of
/// the forms.
void parse_wrap(std::string_view text, WrapPolicy& policy);
/// The text that parse_wrap reads as this policy; "calls" for explicit calls.
std::string wrap_text(const WrapPolicy& policy);
/// In words: "every 2 blocks".
std::string describe_wrap(const WrapPolicy& policy);

/// Embedding and head are units of their own beside the policy's. Policies that name modules name
/// all that are units.
bool splits_root(const WrapPolicy& policy);

/// Units of `k` consecutive blocks; 0: everything in the root.
WrapPolicy blocks_together(std::int64_t k);

/// The modules of each unit that the policy names, without the units of embedding and head and
/// without the root. Blocks are grouped within one list of modules: a unit of encoder and decoder
/// blocks would be gathered twice. Beside single blocks stand the modules that libraries wrap with
/// them (ModelRoles::extra_units). Named modules come deepest first, so that inner units exist
/// before outer ones. Nothing for kSize (FSDP1's own rule) and kCalls. InputError for a name that
/// the model does not have.
std::vector<std::vector<ModuleId>> wrapped_groups(const Model& model, const WrapPolicy& policy);

/// True if `module` is one of `groups` or inside one.
bool inside_any(const Model& model, ModuleId module,
                const std::vector<std::vector<ModuleId>>& groups);

}  // namespace foreshard
