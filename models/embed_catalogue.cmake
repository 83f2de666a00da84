# Writes OUTPUT, a C++ file that holds every JSON file under ROOT as a raw string (see catalogue.h).
file(GLOB files RELATIVE ${ROOT} ${ROOT}/*.json)
list(SORT files)
set(body "")
set(count 0)
foreach(file IN LISTS files)
  file(READ ${ROOT}/${file} text)
  # Names have dots: take off the last extension only.
  string(REGEX REPLACE "\\.json$" "" name ${file})
  string(APPEND body "    {\"${name}\", R\"catalogue(${text})catalogue\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Generated from models/catalogue; do not edit.
#include \"models/catalogue.h\"

namespace foreshard {
namespace {
constexpr EmbeddedModelFile kFiles[] = {
${body}};
}  // namespace
const EmbeddedModelFile* embedded_model_files(int& count) {
  count = ${count};
  return kFiles;
}
}  // namespace foreshard
")
