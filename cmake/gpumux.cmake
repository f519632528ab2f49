# The few helpers that every folder's CMakeLists.txt is written with.

# A second build of the same sources takes seconds with ccache. Its paths are set by tools/build.sh.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(GPUMUX_CCACHE ccache)
  mark_as_advanced(GPUMUX_CCACHE)
  if(GPUMUX_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${GPUMUX_CCACHE})
    set(CMAKE_C_COMPILER_LAUNCHER ${GPUMUX_CCACHE})
  endif()
endif()

add_library(gpumux_options INTERFACE)
set(gpumux_not_before_gcc_13)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(gpumux_not_before_gcc_13 -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()
target_include_directories(gpumux_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
if(CMAKE_CROSSCOMPILING)
  # tl::expected is a header for every architecture. The other headers of /usr/include are this machine's.
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/headers)
  file(CREATE_LINK /usr/include/tl ${PROJECT_BINARY_DIR}/headers/tl SYMBOLIC)
  target_include_directories(gpumux_options SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/headers)
endif()
target_compile_definitions(gpumux_options INTERFACE _GNU_SOURCE)
target_compile_options(gpumux_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wnon-virtual-dtor
  -Wimplicit-fallthrough -fvisibility=hidden -fvisibility-inlines-hidden
  # g++ 12 sees copies that overlap or are out of bounds in std::string's own operator+ (its bugs 105329 and 105651).
  ${gpumux_not_before_gcc_13}
  # Builds of the same sources in different folders are the same, byte for byte.
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.
  # ccache wants it, to know what a precompiled header is made of.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>
  # In a unity build a source sees what the sources before it use, and is an included file. tools/check_includes.py has
  # these warnings of each file by itself.
  $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-shadow>
  $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage>
  $<$<BOOL:${GPUMUX_WERROR}>:-Werror>)

# Sanitizers go everywhere but into what is preloaded or loaded into programs that are not ours.
add_library(gpumux_sanitize INTERFACE)
if(GPUMUX_SANITIZE)
  target_compile_options(gpumux_sanitize INTERFACE -fsanitize=${GPUMUX_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  if(GPUMUX_SANITIZE MATCHES undefined)
    # It asks for type information, which the components built without it do not have.
    target_compile_options(gpumux_sanitize INTERFACE -fno-sanitize=vptr)
  endif()
  target_link_options(gpumux_sanitize INTERFACE -fsanitize=${GPUMUX_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A test that links the daemon was 300 MB, more than half of it for these two checks and for relocations. The
    # address sanitizer reports the null pointers, and the fuzz preset, clang's, has both checks.
    if(GPUMUX_SANITIZE MATCHES undefined)
      target_compile_options(gpumux_sanitize INTERFACE -fno-sanitize=null,alignment)
    endif()
    if(GPUMUX_SANITIZE MATCHES address)
      target_link_options(gpumux_sanitize INTERFACE -Wl,--compress-debug-sections=zlib
        $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
    endif()
    # With instrumented code g++ loses sight of what is initialised; the dev and release builds have the warning.
    target_compile_options(gpumux_sanitize INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
if(GPUMUX_FUZZ)
  target_compile_options(gpumux_sanitize INTERFACE -fsanitize=fuzzer-no-link)
endif()

# The version and the commit of these sources, asked for in each build (src/base/version.h).
set(GPUMUX_VERSION_FOLDER ${PROJECT_BINARY_DIR}/version)
add_custom_target(gpumux_version_files
  COMMAND ${PROJECT_SOURCE_DIR}/tools/version.sh --write ${GPUMUX_VERSION_FOLDER}
  BYPRODUCTS ${GPUMUX_VERSION_FOLDER}/version.cc ${GPUMUX_VERSION_FOLDER}/version.txt
  COMMENT "Asking for the version")
add_library(gpumux_version OBJECT ${GPUMUX_VERSION_FOLDER}/version.cc)
add_dependencies(gpumux_version gpumux_version_files)
add_library(gpumux_test_version OBJECT tests/unit/version.cc)
foreach(library gpumux_version gpumux_test_version)
  target_link_libraries(${library} PRIVATE gpumux_options)
endforeach()

# gpumux_versioned(TARGET ...): programs and libraries that say their version.
function(gpumux_versioned)
  foreach(target ${ARGN})
    target_link_libraries(${target} PRIVATE gpumux_version)
  endforeach()
endfunction()

# Sources that other programs write: tools/check_includes.py needs no more built.
add_custom_target(generated_sources)
add_dependencies(generated_sources gpumux_version_files)

# The sanitizer and fuzz presets build these targets instead of everything.
add_custom_target(unit_tests)
add_custom_target(fuzzers)

# Everything that scenarios start, without the unit tests.
add_custom_target(scenarios)

# How code of libgpumux.so is compiled: against old glibc symbol versions, and so that what it does not use can be left
# out. Sanitized code is for tests alone.
add_library(gpumux_preloaded INTERFACE)
if(NOT GPUMUX_SANITIZE)
  target_compile_definitions(gpumux_preloaded INTERFACE GPUMUX_OLD_GLIBC)
  target_compile_options(gpumux_preloaded INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O2 -ffunction-sections -fdata-sections
    -include ${PROJECT_SOURCE_DIR}/src/shim/process/old_glibc.h>)
endif()

# gpumux_precompiled(TARGET SET): TARGET begins with the headers that SET has precompiled. g++ reads them in a tenth of
# the time. A SET is a target whose sources are compiled with the same options.
function(gpumux_precompiled target set)
  if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${target} REUSE_FROM ${set})
  endif()
endfunction()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled.cc CONTENT "int main() {}  // a target has a source\n")
add_library(gpumux_plain_headers OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/precompiled.cc)
target_compile_options(gpumux_plain_headers PRIVATE -fno-exceptions -fno-rtti)
add_library(gpumux_exceptions_headers OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/precompiled.cc)
add_executable(gpumux_test_headers EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/precompiled.cc)
foreach(set plain exceptions test)
  target_link_libraries(gpumux_${set}_headers PRIVATE gpumux_options gpumux_sanitize)
  target_precompile_headers(gpumux_${set}_headers PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  set_target_properties(gpumux_${set}_headers PROPERTIES UNITY_BUILD OFF)
endforeach()
target_precompile_headers(gpumux_test_headers PRIVATE ${PROJECT_SOURCE_DIR}/tests/unit/precompiled.h)
target_link_libraries(gpumux_test_headers PRIVATE GTest::gtest)
# Tests run once or twice after each time that they are compiled.
set(gpumux_test_options -O0)
target_compile_options(gpumux_test_headers PRIVATE ${gpumux_test_options})

# gpumux_component(NAME SOURCES a.cc ... [DEPS other ...] [EXCEPTIONS] [PRELOADED])
# A static library gpumux_NAME for one folder of src/. Without EXCEPTIONS it is built with -fno-exceptions -fno-rtti.
# PRELOADED: its objects are part of libgpumux.so, too, so tests run the code that ships. The sources of other
# components are remembered, so that libgpumux.so can compile them again its own way (gpumux_sources_of): a static
# program has no old glibc symbols.
function(gpumux_component name)
  cmake_parse_arguments(arg "EXCEPTIONS;PRELOADED" "" "SOURCES;DEPS;LIBRARIES" ${ARGN})
  add_library(gpumux_${name} STATIC ${arg_SOURCES})
  target_link_libraries(gpumux_${name} PUBLIC gpumux_options gpumux_sanitize ${arg_LIBRARIES})
  foreach(dep ${arg_DEPS})
    target_link_libraries(gpumux_${name} PUBLIC gpumux_${dep})
  endforeach()
  if(arg_EXCEPTIONS)
    gpumux_precompiled(gpumux_${name} gpumux_exceptions_headers)
  else()
    target_compile_options(gpumux_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti>)
    if(NOT arg_PRELOADED)
      gpumux_precompiled(gpumux_${name} gpumux_plain_headers)
    endif()
  endif()
  if(arg_PRELOADED)
    target_link_libraries(gpumux_${name} PRIVATE gpumux_preloaded)
  endif()
  list(TRANSFORM arg_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL PROPERTY gpumux_sources_${name} ${arg_SOURCES})
endfunction()

# gpumux_sources_of(VARIABLE component ...): the absolute source paths of components, for libgpumux.so.
function(gpumux_sources_of variable)
  set(all "")
  foreach(name ${ARGN})
    get_property(sources GLOBAL PROPERTY gpumux_sources_${name})
    list(APPEND all ${sources})
  endforeach()
  set(${variable} ${all} PARENT_SCOPE)
endfunction()

# tools/run_tests.sh runs twice as many tests at once as there are processors, for many tests wait most of the time. A
# test that computes takes two of these places.
set(gpumux_computes 2)
set(gpumux_waits 1)

# gpumux_test(NAME SOURCES a_test.cc ... DEPS component ... [LABELS l ...] [COST s] [WAITS])
# One GoogleTest program, one ctest entry. Its labels say what it is (CONTRIBUTING.md); without any it is a unit test.
# COST: about how many seconds it takes, if more than 10. ctest starts the longest tests first. WAITS: it waits most of
# the time. A folder that is excluded from a build has no tests in it.
function(gpumux_test name)
  get_property(excluded DIRECTORY PROPERTY EXCLUDE_FROM_ALL)
  if(excluded)
    return()
  endif()
  cmake_parse_arguments(arg "WAITS" "COST" "SOURCES;DEPS;LABELS;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE gpumux_options gpumux_sanitize gpumux_test_main gpumux_test_version
    ${arg_LIBRARIES})
  # The code under test is compiled as ever, except for its headers.
  target_compile_options(${name} PRIVATE ${gpumux_test_options})
  gpumux_precompiled(${name} gpumux_test_headers)
  foreach(dep ${arg_DEPS})
    target_link_libraries(${name} PRIVATE gpumux_${dep})
  endforeach()
  # After the components: before them, its own references would pull in objects of theirs that no test asked for.
  target_link_libraries(${name} PRIVATE GTest::gtest)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if("unit" IN_LIST arg_LABELS)
    add_dependencies(unit_tests ${name})
  endif()
  math(EXPR deadline "${DART_TESTING_TIMEOUT} - 30")  # for what hangs to say where: tests/unit/main.cc
  if(NOT arg_COST)
    set(arg_COST 0)
  endif()
  set(places ${gpumux_computes})
  if(arg_WAITS)
    set(places ${gpumux_waits})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" COST ${arg_COST}
    PROCESSORS ${places} ENVIRONMENT GPUMUX_TEST_DEADLINE=${deadline})
endfunction()

# gpumux_scenario(NAME [OWN_PLACES] [COST s]): this folder's NAME_test.py as one test, e2e_NAME. Scenarios wait most of
# the time, and none counts on how fast the machine is: each takes half a processor. COST: about how many seconds it
# takes, if more than 10. ctest starts the longest tests first, and a new build tree knows no times. OWN_PLACES: it
# looks for a private daemon, or starts one, where this user's commands find it. Such tests run one at a time.
function(gpumux_scenario name)
  if(GPUMUX_SANITIZE OR GPUMUX_FUZZ)
    return()  # programs run with a preloaded library and a simulated driver, which are never sanitized
  endif()
  cmake_parse_arguments(arg "OWN_PLACES" "COST" "" ${ARGN})
  add_test(NAME e2e_${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/${name}_test.py)
  if(NOT arg_COST)
    set(arg_COST 0)
  endif()
  set_tests_properties(e2e_${name} PROPERTIES LABELS e2e COST ${arg_COST}
    ENVIRONMENT "GPUMUX_BUILD=${PROJECT_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
  if(arg_OWN_PLACES)
    set_tests_properties(e2e_${name} PROPERTIES RESOURCE_LOCK places_of_this_user)
  endif()
endfunction()

# gpumux_startable(VARIABLE TARGET): the path by which a test starts the program TARGET. In a build for another
# architecture it is a script that starts the emulator.
function(gpumux_startable variable target)
  set(path $<TARGET_FILE:${target}>)
  if(CMAKE_CROSSCOMPILING)
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
    set(script ${PROJECT_BINARY_DIR}/emulated/${target})
    file(GENERATE OUTPUT ${script} CONTENT "#!/bin/sh\nexec ${emulator} ${path} \"$@\"\n"
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    set(path ${script})
  endif()
  set(${variable} ${path} PARENT_SCOPE)
endfunction()

# gpumux_bench(NAME SOURCES a_bench.cc ... DEPS component ...)
# One Google Benchmark program; ctest runs each once, briefly, so that it cannot rot.
function(gpumux_bench name)
  if(CMAKE_CROSSCOMPILING)
    return()  # an emulator's figures say nothing
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE gpumux_options gpumux_sanitize gpumux_test_version benchmark::benchmark
    ${arg_LIBRARIES})
  foreach(dep ${arg_DEPS})
    target_link_libraries(${name} PRIVATE gpumux_${dep})
  endforeach()
  # That it runs; not with a hundred thousand of anything and more, which takes minutes.
  add_test(NAME ${name}_runs COMMAND ${name} --benchmark_min_time=0.001 --benchmark_filter=-/1000000?)
  set_tests_properties(${name}_runs PROPERTIES LABELS bench PROCESSORS ${gpumux_computes})
endfunction()

# gpumux_fuzz(NAME SOURCES a_fuzz.cc DEPS component ... CORPUS corpus/NAME)
# NAME ends in _fuzz and defines LLVMFuzzerTestOneInput. The fuzz preset (clang) makes a libFuzzer program of it, which
# tools/fuzz.sh runs. Every other preset makes a test that replays the checked-in corpus and a fixed number of changed
# copies of it: what was found once stays found, with any compiler and under any sanitizer.
function(gpumux_fuzz name)
  cmake_parse_arguments(arg "" "CORPUS" "SOURCES;DEPS;LIBRARIES" ${ARGN})
  if(GPUMUX_FUZZ)
    add_executable(${name} ${arg_SOURCES})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzzers ${name})
  else()
    add_executable(${name} ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cc)
    add_test(NAME ${name}_replay COMMAND ${name} ${CMAKE_CURRENT_SOURCE_DIR}/${arg_CORPUS})
    set_tests_properties(${name}_replay PROPERTIES LABELS unit PROCESSORS ${gpumux_computes})
    add_dependencies(unit_tests ${name})
  endif()
  target_link_libraries(${name} PRIVATE gpumux_options gpumux_sanitize gpumux_test_version ${arg_LIBRARIES})
  foreach(dep ${arg_DEPS})
    target_link_libraries(${name} PRIVATE gpumux_${dep})
  endforeach()
endfunction()

# gpumux_targets_below(VARIABLE FOLDER): the targets of FOLDER and of all folders in it.
function(gpumux_targets_below variable folder)
  get_property(all DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(inner DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(one ${inner})
    gpumux_targets_below(more ${one})
    list(APPEND all ${more})
  endforeach()
  set(${variable} ${all} PARENT_SCOPE)
endfunction()

# gpumux_leaf(NAME WHAT [TARGET ...]): the folder NAME is a leaf product, which nothing of src/ needs. The option
# GPUMUX_NAME=OFF leaves it out, and what it needs is not looked for. The target NAME builds it with each TARGET, and
# what they use of src/.
function(gpumux_leaf name what)
  string(TOUPPER ${name} key)
  option(GPUMUX_${key} "Build ${name}/: ${what}" ON)
  if(NOT GPUMUX_${key})
    set_property(GLOBAL APPEND PROPERTY gpumux_left_out ${name})
    return()
  endif()
  add_subdirectory(${name})
  add_custom_target(${name})
  gpumux_targets_below(targets ${PROJECT_SOURCE_DIR}/${name})
  add_dependencies(${name} ${targets} ${ARGN})
endfunction()
