# Installs to a directory of its own, then configures, builds and runs a separate project against it.

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR}/build -G ${GENERATOR}
  -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -Dexecutorch_ROOT=${PREFIX_PATH})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run(${WORK_DIR}/build/registered)
if(MODELS STREQUAL "")
  message(STATUS "SKIPPED: the consumer was built and linked, but WEIGHTSTREAM_TEST_MODELS is not set, so it ran no model")
  return()
endif()
file(GLOB programs ${MODELS}/*.pte)
if(NOT programs)
  message(FATAL_ERROR "${MODELS} holds no program")
endif()
list(GET programs 0 program)
string(REGEX REPLACE "\\.pte$" ".ptd" weights ${program})
run(${WORK_DIR}/build/consumer ${program} ${weights})
run(${WORK_DIR}/build/stock ${program} ${weights})
