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
  # g++ 12 sees overlapping copies in std::string's own operator+ at -O2 and above (its bug 105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  # Builds of the same sources in different folders are the same, byte for byte.
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.
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

# The sanitizer and fuzz presets build these targets instead of everything.
add_custom_target(unit_tests)
add_custom_target(fuzzers)

# gpumux_component(NAME SOURCES a.cc ... [DEPS other ...] [EXCEPTIONS])
# A static library gpumux_NAME for one folder of src/. Without EXCEPTIONS it is built with -fno-exceptions -fno-rtti.
# Its sources are remembered, so that libgpumux.so can compile them again its own way (gpumux_sources_of).
function(gpumux_component name)
  cmake_parse_arguments(arg "EXCEPTIONS" "" "SOURCES;DEPS;LIBRARIES" ${ARGN})
  add_library(gpumux_${name} STATIC ${arg_SOURCES})
  target_link_libraries(gpumux_${name} PUBLIC gpumux_options gpumux_sanitize ${arg_LIBRARIES})
  foreach(dep ${arg_DEPS})
    target_link_libraries(gpumux_${name} PUBLIC gpumux_${dep})
  endforeach()
  if(NOT arg_EXCEPTIONS)
    target_compile_options(gpumux_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti>)
  endif()
  set(absolute "")
  foreach(source ${arg_SOURCES})
    list(APPEND absolute ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  endforeach()
  set_property(GLOBAL PROPERTY gpumux_sources_${name} ${absolute})
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
  if(GPUMUX_SANITIZE MATCHES address)
    # Half the time to compile. The code under test is compiled as ever, except for its headers.
    target_compile_options(${name} PRIVATE -O0)
  endif()
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
