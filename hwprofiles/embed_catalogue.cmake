# Writes OUTPUT, a C++ file that holds every JSON file under ROOT as a raw string (see embedded_catalogue.h).
file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/*.json)
list(SORT files)
set(body "")
set(count 0)
foreach(file IN LISTS files)
  file(READ ${ROOT}/${file} text)
  get_filename_component(name ${file} NAME)
  string(REGEX REPLACE "\\.json$" "" name "${name}")
  get_filename_component(folder ${file} DIRECTORY)
  string(APPEND body "    {\"${folder}\", \"${name}\", R\"catalogue(${text})catalogue\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Generated from hwprofiles/catalogue; do not edit.
#include \"hwprofiles/embedded_catalogue.h\"

namespace foreshard {
namespace {
constexpr EmbeddedFile kFiles[] = {
${body}};
}  // namespace
std::span<const EmbeddedFile> embedded_catalogue() { return kFiles; }
}  // namespace foreshard
")
