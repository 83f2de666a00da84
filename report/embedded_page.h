#pragma once

#include <string_view>

namespace foreshard {

/// The HTML report of page/ in one piece; "@DATA@" stands where its data belong
/// (report/embed_page.cmake writes the definition).
std::string_view embedded_page();

}  // namespace foreshard
