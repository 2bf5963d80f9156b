# kvlease_room(NAME …): the static library kvlease::NAME from kvlease/NAME/*.cc, and, from *_test.cc
# beside them, the test program NAME_tests (testing.cc and *_testing.cc files belong to tests only).

set(KVLEASE_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports these falsely through std::expected and std::string at -O2.
  list(APPEND KVLEASE_WARNINGS -Wno-error=maybe-uninitialized -Wno-error=restrict
       -Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-missing-field-initializers)
  # The thread sanitizer does not model fences; what they order is accessed atomically all the same.
  list(APPEND KVLEASE_WARNINGS -Wno-tsan)
else()
  list(APPEND KVLEASE_WARNINGS -Wno-missing-designated-field-initializers)
endif()

function(kvlease_target_options target)
  target_compile_options(${target} PRIVATE ${KVLEASE_WARNINGS})
  if(KVLEASE_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${KVLEASE_SANITIZE}
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${KVLEASE_SANITIZE})
  endif()
  if(KVLEASE_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

if(KVLEASE_FUZZ)
  add_custom_target(fuzzers COMMENT "All libFuzzer targets")
endif()

function(kvlease_include_dirs target scope)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                             $<INSTALL_INTERFACE:include>)
endfunction()

function(kvlease_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS;PRIVATE" ${ARGN})
  set(dir ${PROJECT_SOURCE_DIR}/kvlease/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cc)
  file(GLOB tests CONFIGURE_DEPENDS ${dir}/*_test.cc ${dir}/*testing.cc)
  file(GLOB fuzzers CONFIGURE_DEPENDS ${dir}/*_fuzz.cc)
  list(REMOVE_ITEM sources ${tests} ${fuzzers} "")
  list(TRANSFORM ROOM_DEPENDS PREPEND kvlease_ OUTPUT_VARIABLE depends)

  if(sources)
    add_library(kvlease_${name} STATIC ${sources})
    target_link_libraries(kvlease_${name} PUBLIC ${depends} PRIVATE ${ROOM_PRIVATE})
    kvlease_include_dirs(kvlease_${name} PUBLIC)
    kvlease_target_options(kvlease_${name})
  else()
    add_library(kvlease_${name} INTERFACE)
    target_link_libraries(kvlease_${name} INTERFACE ${depends})
    kvlease_include_dirs(kvlease_${name} INTERFACE)
  endif()
  add_library(kvlease::${name} ALIAS kvlease_${name})
  set_property(TARGET kvlease_${name} PROPERTY EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY KVLEASE_ROOMS ${name})

  if(KVLEASE_TESTS AND tests)
    kvlease_test_program(${name}_tests SOURCES ${tests} LINK kvlease_${name} ${ROOM_PRIVATE})
  endif()
  if(KVLEASE_FUZZ)
    file(GLOB helpers CONFIGURE_DEPENDS ${dir}/*_testing.cc)
    foreach(fuzzer ${fuzzers})
      get_filename_component(fuzz_name ${fuzzer} NAME_WE)
      add_executable(${fuzz_name} ${fuzzer} ${helpers})
      target_link_libraries(${fuzz_name} PRIVATE kvlease_${name} ${ROOM_PRIVATE})
      kvlease_target_options(${fuzz_name})
      target_link_options(${fuzz_name} PRIVATE -fsanitize=fuzzer)
      set_target_properties(${fuzz_name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
      add_dependencies(fuzzers ${fuzz_name})
    endforeach()
  endif()
endfunction()

# Puts kvlease/<room>/<file> into the room's library as the text that the function `name` (declared
# in <name>.h) returns. No `)page"` in the file; at most 65,536 bytes, as long as a literal may be.
function(kvlease_page room file name)
  set(source ${PROJECT_SOURCE_DIR}/kvlease/${room}/${file})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} KVLEASE_PAGE)
  set(KVLEASE_PAGE_HEADER kvlease/${room}/${name}.h)
  set(KVLEASE_PAGE_NAME ${name})
  set(generated ${PROJECT_BINARY_DIR}/generated/${name}.cc)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/page.cc.in ${generated} @ONLY)
  target_sources(kvlease_${room} PRIVATE ${generated})
endfunction()

# Finds RapidCheck once, as the imported target kvlease_rapidcheck.
function(kvlease_find_rapidcheck)
  if(NOT TARGET kvlease_rapidcheck)
    find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)
    find_path(RAPIDCHECK_INCLUDE_DIR rapidcheck.h REQUIRED)
    add_library(kvlease_rapidcheck INTERFACE IMPORTED GLOBAL)
    target_link_libraries(kvlease_rapidcheck INTERFACE ${RAPIDCHECK_LIBRARY})
    target_include_directories(kvlease_rapidcheck SYSTEM INTERFACE ${RAPIDCHECK_INCLUDE_DIR})
  endif()
endfunction()

function(kvlease_test_program name)
  cmake_parse_arguments(TEST "" "" "SOURCES;LINK" ${ARGN})
  kvlease_find_rapidcheck()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LINK} GTest::gtest GTest::gmock GTest::gtest_main
                        kvlease_rapidcheck)
  kvlease_include_dirs(${name} PRIVATE)
  kvlease_target_options(${name})
  # Compiling the tests, not running them, is what takes time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
  target_compile_definitions(${name} PRIVATE
                             KVL_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                             KVL_BINARY_DIR="${PROJECT_BINARY_DIR}")
  include(GoogleTest)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600)
endfunction()

function(kvlease_program name room)
  cmake_parse_arguments(PROGRAM "" "" "DEPENDS;PRIVATE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kvlease/${room}/*.cc)
  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kvlease/${room}/*_test.cc)
  list(REMOVE_ITEM sources ${tests} "")
  if(sources)
    list(TRANSFORM PROGRAM_DEPENDS PREPEND kvlease_ OUTPUT_VARIABLE depends)
    add_executable(${name} ${sources})
    target_link_libraries(${name} PRIVATE ${depends} ${PROGRAM_PRIVATE})
    kvlease_target_options(${name})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  endif()
endfunction()

# Tests that cross rooms: each folder below tests/ that holds *_test.cc is one program.
function(kvlease_cross_tests folder)
  if(NOT KVLEASE_TESTS)
    return()
  endif()
  file(GLOB dirs CONFIGURE_DEPENDS LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/${folder}/*)
  foreach(dir ${dirs})
    if(IS_DIRECTORY ${dir})
      file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cc)
      file(GLOB tests CONFIGURE_DEPENDS ${dir}/*_test.cc)
      if(tests)
        get_filename_component(name ${dir} NAME)
        if(name STREQUAL "pairs")  # whole engines on the fabric: the pure rooms and nothing else
          kvlease_test_program(pairs_tests LINK kvlease_synthetic kvlease_fabric Boost::json
                               SOURCES ${sources}
                                       ${PROJECT_SOURCE_DIR}/kvlease/wire/proxy_testing.cc)
          continue()
        endif()
        kvlease_test_program(${name}_tests
                             SOURCES ${sources}
                                     ${PROJECT_SOURCE_DIR}/kvlease/runtime/socket_testing.cc
                             LINK kvlease_serving kvlease_synthetic kvlease_fabric kvlease_nixl
                             Boost::json PkgConfig::SODIUM Threads::Threads)
        if(TARGET kvlease)
          add_dependencies(${name}_tests kvlease)
        endif()
      endif()
    endif()
  endforeach()
endfunction()

# Benchmarks: each *_bench.cc is one program, built only when asked for by name or by the target
# `benchmarks`.
function(kvlease_benchmarks folder)
  add_custom_target(benchmarks)
  if(TARGET kvlease)
    add_dependencies(benchmarks kvlease)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*_bench.cc)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${name} PRIVATE kvlease_serving kvlease_nixl kvlease_fabric
                          Threads::Threads)
    target_compile_definitions(${name} PRIVATE KVL_BINARY_DIR="${PROJECT_BINARY_DIR}")
    kvlease_include_dirs(${name} PRIVATE)
    kvlease_target_options(${name})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
    add_dependencies(benchmarks ${name})
  endforeach()
endfunction()
