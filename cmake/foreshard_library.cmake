# foreshard_library(NAME DEPS lib...): one static library of all .cc files of the current folder (not of sub-folders
# that have a CMakeLists.txt of their own; list those sub-folders' sources with EXTRA_DIRS where they belong to it).
# foreshard_test(PART DEPS lib...): one GoogleTest program of all .cc files of the current folder, helpers
# of its tests included.

add_library(foreshard_flags INTERFACE)
target_compile_options(foreshard_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
target_include_directories(foreshard_flags INTERFACE ${CMAKE_SOURCE_DIR})
if(FORESHARD_WERROR)
  target_compile_options(foreshard_flags INTERFACE -Werror)
endif()
if(FORESHARD_SANITIZE)
  string(REPLACE ";" "," _fs_sanitize "${FORESHARD_SANITIZE}")
  # GCC takes parts of std::regex for uninitialised where code is instrumented.
  target_compile_options(foreshard_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(foreshard_flags INTERFACE -fsanitize=${_fs_sanitize} -fno-sanitize-recover=all
                         -fno-omit-frame-pointer)
  target_link_options(foreshard_flags INTERFACE -fsanitize=${_fs_sanitize})
endif()

if(FORESHARD_FUZZ)  # Coverage of all code, which libFuzzer steers by.
  target_compile_options(foreshard_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# foreshard_cold(TARGET): code that runs once in a command (reading, searches, text, tests): compiled for a short build.
function(foreshard_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# foreshard_grouped(TARGET): with FORESHARD_UNITY, files of the target are compiled in groups (each header read once a group).
function(foreshard_grouped target)
  if(FORESHARD_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

function(foreshard_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;EXTRA_DIRS" ${ARGN})
  set(patterns ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  foreach(dir ${ARG_EXTRA_DIRS})
    list(APPEND patterns ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*.cc)
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(sources)
    add_library(${name} STATIC ${sources})
    foreshard_grouped(${name})
    target_link_libraries(${name} PUBLIC foreshard_flags ${ARG_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE foreshard_flags ${ARG_DEPS})
  endif()
endfunction()

function(foreshard_test part)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_executable(test_${part} ${sources})
  foreshard_cold(test_${part})
  foreshard_grouped(test_${part})
  target_link_libraries(test_${part} PRIVATE foreshard_flags ${ARG_DEPS} GTest::gtest_main)
  target_compile_definitions(test_${part} PRIVATE FORESHARD_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${part} COMMAND test_${part} --gtest_brief=1)
  set_tests_properties(${part} PROPERTIES TIMEOUT 600)
endfunction()
