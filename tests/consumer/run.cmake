# Configures, builds and runs the consumer in MODE add_subdirectory or find_package, inside WORK_DIR.
# With COMPONENTS torch, the consumer trains; in MODE add_subdirectory it is only configured then, since building the library
# again takes minutes.
# Expects MODE, WORK_DIR, GPIPE_SOURCE_DIR, GPIPE_BINARY_DIR, GENERATOR, CXX_COMPILER, BUILD_TYPE; LAUNCHER and COMPONENTS may be empty.
cmake_minimum_required(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "failed (${result}): ${line}")
  endif()
endfunction()

# An installed file may name neither the sources nor the build tree, nor need what only our own sources need.
function(check_installed prefix)
  file(GLOB_RECURSE package_files ${prefix}/*.cmake)
  file(GLOB_RECURSE headers ${prefix}/*.h)
  if(NOT package_files OR NOT headers)
    message(FATAL_ERROR "the installation has no package files or no headers")
  endif()
  foreach(file ${package_files})
    file(READ ${file} text)
    foreach(path ${GPIPE_SOURCE_DIR} ${GPIPE_BINARY_DIR} ${prefix})
      string(FIND "${text}" "${path}" position)
      if(NOT position EQUAL -1)
        message(FATAL_ERROR "${file} names ${path}")
      endif()
    endforeach()
    if(text MATCHES "nlohmann|CLI11")
      message(FATAL_ERROR "${file} needs ${CMAKE_MATCH_0}")
    endif()
  endforeach()
  foreach(file ${headers})
    file(STRINGS ${file} includes REGEX "^ *#include [<\"](nlohmann|CLI|gtest|benchmark)/")
    if(includes)
      message(FATAL_ERROR "${file} has ${includes}")
    endif()
  endforeach()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
if(MODE STREQUAL "add_subdirectory")
  set(where -DGPIPE_SOURCE_DIR=${GPIPE_SOURCE_DIR} -DGPIPE_COMPONENTS=${COMPONENTS})
else()
  run(${CMAKE_COMMAND} --install ${GPIPE_BINARY_DIR} --prefix ${WORK_DIR}/installed)
  check_installed(${WORK_DIR}/installed)
  run(${WORK_DIR}/installed/bin/gpipe --version)
  # Found where it was not installed to: the package can be moved.
  file(RENAME ${WORK_DIR}/installed ${WORK_DIR}/moved)
  set(where -DCMAKE_PREFIX_PATH=${WORK_DIR}/moved -DGPIPE_COMPONENTS=${COMPONENTS})
  # A component that there is none of: the refusal says why.
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/wrong -G ${GENERATOR}
      -DCMAKE_PREFIX_PATH=${WORK_DIR}/moved -DGPIPE_COMPONENTS=wrong -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
    RESULT_VARIABLE result ERROR_VARIABLE said OUTPUT_QUIET)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(result EQUAL 0 OR NOT said MATCHES "there is no component 'wrong'")
    message(FATAL_ERROR "find_package(gpipe COMPONENTS wrong) says: ${said}")
  endif()
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/build -G ${GENERATOR} ${where}
  -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
if(MODE STREQUAL "add_subdirectory" AND COMPONENTS STREQUAL "torch")
  return()
endif()
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)

execute_process(COMMAND ${WORK_DIR}/build/consumer OUTPUT_VARIABLE output RESULT_VARIABLE result)
set(expected "peak activations: 4\n")
if(COMPONENTS STREQUAL "torch")
  string(APPEND expected "trained on 2 stages\n")
endif()
if(NOT result EQUAL 0 OR NOT output STREQUAL expected)
  message(FATAL_ERROR "the consumer gave ${result} and printed '${output}'; expected 0 and '${expected}'")
endif()
