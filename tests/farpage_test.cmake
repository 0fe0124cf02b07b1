# farpage_test(NAME LABEL label [SHARDS n] SOURCES ... LIBRARIES ...): one GoogleTest program; each of
# its tests is a ctest test of that label: unit, kernel (real userfaultfd), e2e (several processes),
# rdma (lab VM).
function(farpage_test name)
  cmake_parse_arguments(T "" "LABEL;TIMEOUT;SHARDS" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  if(NOT T_SHARDS)
    set(T_SHARDS 1)
  endif()
  add_executable(${name} ${T_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${T_LIBRARIES} GTest::gmock GTest::gtest_main
                        farpage_options farpage_sanitizers)
  # A test is compiled more often than it is run, so compile time counts more.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
  add_dependencies(tests_${T_LABEL} ${name})
  if(FARPAGE_SANITIZE)
    # A process with a sanitizer takes half a second to start: one for all tests, or for each of SHARDS.
    math(EXPR last "${T_SHARDS} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${name}.${shard} COMMAND ${name} --gtest_brief=1)
      set_tests_properties(${name}.${shard} PROPERTIES LABELS ${T_LABEL} TIMEOUT 900
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${T_SHARDS};GTEST_SHARD_INDEX=${shard}")
    endforeach()
    return()
  endif()
  # Tests are named by the parameter's name, not by its value, which may be arbitrary bytes.
  gtest_discover_tests(${name} NO_PRETTY_VALUES PROPERTIES LABELS ${T_LABEL} TIMEOUT ${T_TIMEOUT}
                       DISCOVERY_TIMEOUT 60)
endfunction()
