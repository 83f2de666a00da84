# Writes OUTPUT, a C++ file that holds the report's page: page/report.html with the style sheet and the scripts in place.
# @DATA@ stays: html.cc splits the page there.
file(READ ${ROOT}/report.html html)
file(READ ${ROOT}/report.css style)
set(script "")
foreach(part text sections streams curves)
  file(READ ${ROOT}/${part}.js text)
  string(APPEND script "${text}\n")
endforeach()
string(REPLACE "@STYLE@" "${style}" html "${html}")
string(REPLACE "@SCRIPT@" "${script}" html "${html}")
file(WRITE ${OUTPUT} "// Generated from report/page; do not edit.
#include \"report/embedded_page.h\"

namespace foreshard {
std::string_view embedded_page() { return R\"page(${html})page\"; }
}  // namespace foreshard
")
