# farpage_lab_test(NAME name COMMAND line [COMMAND_B line] [OPTIONS option...] [TIMEOUT seconds]
# [FULL]):
# a ctest test, label rdma, that runs a line of bash inside a lab VM (tests/lab/vm.sh) and passes
# when its status is 0. COMMAND_B: two VMs on one Ethernet; the second VM runs this line. OPTIONS
# are those of vm.sh, such as -m 1024. The working folder is the build folder, also in the VM, which
# has all files of the host: a line can name binaries by path. TIMEOUT (120) includes the boot.
# FULL: only in ./dev test --full.
function(farpage_lab_test)
  cmake_parse_arguments(PARSE_ARGV 0 T "FULL" "NAME;COMMAND;COMMAND_B;TIMEOUT" "OPTIONS")
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  math(EXPR ctest_timeout "${T_TIMEOUT} + 20")
  set(when "")
  if(T_FULL)
    set(when CONFIGURATIONS full)
  endif()
  set(lab ${PROJECT_SOURCE_DIR}/tests/lab/vm.sh -t ${T_TIMEOUT} ${T_OPTIONS})
  if(DEFINED T_COMMAND_B)
    add_test(NAME ${T_NAME} ${when} WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
             COMMAND ${lab} --two "${T_COMMAND}" "${T_COMMAND_B}")
  else()
    add_test(NAME ${T_NAME} ${when} WORKING_DIRECTORY ${CMAKE_BINARY_DIR} COMMAND ${lab} -- "${T_COMMAND}")
  endif()
  # The emulated CPUs need the real ones exclusively.
  set_tests_properties(${T_NAME} PROPERTIES LABELS rdma TIMEOUT ${ctest_timeout} RUN_SERIAL ON
                       FIXTURES_REQUIRED lab)
endfunction()
