# Compiles uses.cpp as far as its meaning: in CASE right_uses it has to be accepted, in CASE misuses each has to meet its message.
# Expects CASE, CXX_COMPILER, INCLUDES and DEFINITIONS, which are lists that are joined by "|".
cmake_minimum_required(VERSION 3.22)

set(messages
  "wants a module holder, such as torch::nn::Linear"
  "the module has no constructor that takes these arguments; for a module that is built already"
  "takes a module holder, such as torch::nn::ReLU.., or a std::shared_ptr"
  "a layer needs a forward of tensors; give a module of its own class"
  "gpipe::Pipeline is made of a torch::nn::Sequential or a gpipe::LayerChain"
  "is called with the output and the target, two torch::Tensor; a loss that needs no target"
  "the target of train_step is a torch::Tensor, or a std::vector of them; make one of other values"
  "the input of train_step is a torch::Tensor, or a std::vector of them"
  "are both a torch::Tensor, or both a std::vector"
  "is called with all outputs and all targets"
  "returns a scalar torch::Tensor, or a gpipe::LossValue; leave out item"
  "LBFGS updates each parameter by what all others are")

string(REPLACE "|" ";" INCLUDES "${INCLUDES}")
string(REPLACE "|" ";" DEFINITIONS "${DEFINITIONS}")
# The compiler finds those by itself, and only in its own order.
list(FILTER INCLUDES EXCLUDE REGEX "^(|/usr/include|/usr/lib/../include)$")
list(REMOVE_DUPLICATES INCLUDES)
list(TRANSFORM INCLUDES PREPEND "-isystem")
list(TRANSFORM DEFINITIONS PREPEND "-D")
if(CASE STREQUAL "misuses")
  list(APPEND DEFINITIONS -DGPIPE_MISUSES)
endif()

execute_process(
  COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C ${CXX_COMPILER} -std=c++17 -fopenmp -fsyntax-only -w
    ${DEFINITIONS} ${INCLUDES} ${CMAKE_CURRENT_LIST_DIR}/uses.cpp
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(CASE STREQUAL "right_uses")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "the right uses do not compile:\n${output}")
  endif()
  return()
endif()
if(result EQUAL 0)
  message(FATAL_ERROR "the misuses compile")
endif()
foreach(text ${messages})
  if(NOT output MATCHES "static assertion failed: [^\n]*${text}")
    message(FATAL_ERROR "no message matches '${text}':\n${output}")
  endif()
endforeach()
