# gpipe::gpipe: everything that touches a tensor.
# Targets for the whole build: a project that adds this folder links against them, too.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
find_package(Torch REQUIRED)
find_package(OpenMP REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)  # ranks prove with it that they know the run's secret
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)   # hashes of checkpoints; nothing to link

add_library(gpipe_torch STATIC
  gpipe/model/boundary.cpp
  gpipe/model/busy_neighbours.cpp
  gpipe/model/changing_buffers.cpp
  gpipe/model/deferred_batch_norm.cpp
  gpipe/model/dropout.cpp
  gpipe/model/dropout_mask.cpp
  gpipe/model/flop_counter.cpp
  gpipe/model/noted_input.cpp
  gpipe/model/layer.cpp
  gpipe/model/layer_chain.cpp
  gpipe/model/layer_meter.cpp
  gpipe/model/layer_scope.cpp
  gpipe/model/memory_account.cpp
  gpipe/model/meta_kernels.cpp
  gpipe/model/meta_layer.cpp
  gpipe/model/micro_batch.cpp
  gpipe/model/no_init_scope.cpp
  gpipe/model/num_parameters.cpp
  gpipe/model/open_module.cpp
  gpipe/model/optimizer_slots.cpp
  gpipe/model/update_in_blocks.cpp
  gpipe/model/profiler.cpp
  gpipe/model/skip.cpp
  gpipe/model/skip_tracer.cpp
  gpipe/model/split_backward.cpp
  gpipe/model/tie.cpp
  gpipe/model/weight_names.cpp
  gpipe/checkpoint/checkpoint.cpp
  gpipe/checkpoint/checkpoint_files.cpp
  gpipe/checkpoint/checkpoint_ranks.cpp
  gpipe/checkpoint/checkpoint_writer.cpp
  gpipe/checkpoint/layer_names.cpp
  gpipe/checkpoint/optimizer_state.cpp
  gpipe/checkpoint/parallel.cpp
  gpipe/checkpoint/safetensors.cpp
  gpipe/checkpoint/resumed_parts.cpp
  gpipe/hash/content_hash.cpp
  gpipe/checkpoint/weights.cpp
  gpipe/transport/host_copies.cpp
  gpipe/transport/stage_stream.cpp
  gpipe/transport/wire_record.cpp
  gpipe/transport/c10d/carrier.cpp
  gpipe/transport/c10d/exchange.cpp
  gpipe/transport/fingerprint.cpp
  gpipe/transport/c10d/rank_listener.cpp
  gpipe/transport/c10d/handshake.cpp
  gpipe/transport/c10d/meeting.cpp
  gpipe/transport/c10d/packet_header.cpp
  gpipe/transport/c10d/peers.cpp
  gpipe/transport/c10d/proven_device.cpp
  gpipe/transport/c10d/remote_flow.cpp
  gpipe/transport/c10d/socket.cpp
  gpipe/transport/c10d/store.cpp
  gpipe/transport/c10d/failure_report.cpp
  gpipe/execute/all_ranks.cpp
  gpipe/execute/cut/cut.cpp
  gpipe/execute/engine/engine.cpp
  gpipe/execute/freed_memory.cpp
  gpipe/execute/group/gradient_reducer.cpp
  gpipe/execute/group/loss_parts.cpp
  gpipe/execute/group/process_group.cpp
  gpipe/execute/group/replicas.cpp
  gpipe/execute/group/step_call.cpp
  gpipe/execute/group/step_report.cpp
  gpipe/execute/group/tied_values.cpp
  gpipe/execute/model/model.cpp
  gpipe/execute/model/scope_tree.cpp
  gpipe/execute/pipeline.cpp
  gpipe/execute/record/program_recording.cpp
  gpipe/execute/record/run_recorder.cpp
  gpipe/execute/record/step_recorder.cpp
  gpipe/execute/record/tensor_digest.cpp
  gpipe/execute/replica_share.cpp
  gpipe/execute/runner/assembly.cpp
  gpipe/execute/runner/first_batch.cpp
  gpipe/execute/runner/runner.cpp
  gpipe/execute/runner/skip_trial.cpp
  gpipe/execute/split/memory_book.cpp
  gpipe/execute/split/split.cpp
  gpipe/execute/stage/dropped_layers.cpp
  gpipe/execute/stage/earlier_gradients.cpp
  gpipe/execute/stage/input_keeper.cpp
  gpipe/execute/stage/own_gradients.cpp
  gpipe/execute/stage/rematerialized_layers.cpp
  gpipe/execute/stage/stage.cpp
  gpipe/execute/stage/stage_layers.cpp
  gpipe/execute/stage_optimizers.cpp
  gpipe/execute/step/clip_grad_norm.cpp
  gpipe/execute/step/drop_in.cpp
  gpipe/execute/step/loss_check.cpp
  gpipe/execute/step/stage_work.cpp
  gpipe/execute/step/step.cpp
  gpipe/execute/step/train_step.cpp
  gpipe/execute/values/checked_options.cpp
  gpipe/execute/values/pipeline_options.cpp
  gpipe/execute/values/step_result.cpp
  gpipe/checkpoint/hashed_file.cpp
  gpipe/checkpoint/inspect_model.cpp
  gpipe/checkpoint/model_place.cpp
  gpipe/model/autocast_scope.cpp
  gpipe/torchscript/assigned_attribute.cpp
  gpipe/torchscript/chain_of.cpp
  gpipe/torchscript/cut_rules.cpp
  gpipe/torchscript/deferred_norms.cpp
  gpipe/torchscript/flat_graph.cpp
  gpipe/torchscript/from_torchscript.cpp
  gpipe/torchscript/graph_aliases.cpp
  gpipe/torchscript/graph_walk.cpp
  gpipe/torchscript/indexed_submodules.cpp
  gpipe/torchscript/layer_choice.cpp
  gpipe/torchscript/layer_program.cpp
  gpipe/torchscript/model_inputs.cpp
  gpipe/torchscript/module_attributes.cpp
  gpipe/torchscript/operation_weights.cpp
  gpipe/torchscript/packed_values.cpp
  gpipe/torchscript/script_batch_norm.cpp
  gpipe/torchscript/script_chain.cpp
  gpipe/torchscript/script_error.cpp
  gpipe/torchscript/script_layer.cpp
  gpipe/torchscript/script_layer_names.cpp
  gpipe/torchscript/traced_module.cpp
  gpipe/torchscript/unused_draws.cpp
  gpipe/verify/plain_training.cpp
  gpipe/verify/verify.cpp
)
# g++ 14 takes libtorch 2's Function::apply for writing behind a std::vector<bool> that it has just grown.
if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  set_source_files_properties(gpipe/execute/step/drop_in.cpp PROPERTIES
    COMPILE_OPTIONS "-Wno-array-bounds;-Wno-stringop-overflow")
endif()
# Loops over every element, without torch: with all optimizations, and without the header.
set_source_files_properties(gpipe/hash/content_hash.cpp gpipe/model/dropout_mask.cpp PROPERTIES
  COMPILE_OPTIONS $<$<CONFIG:Release>:-O3> SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
add_library(gpipe::gpipe ALIAS gpipe_torch)
set_target_properties(gpipe_torch PROPERTIES EXPORT_NAME gpipe POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
target_compile_definitions(gpipe_torch PUBLIC GPIPE_WITH_TORCH)
# Note [Precompiled header]
# ~~~~~~~~~~~~~~~~~~~~~~~~~
# One for all targets on libtorch: it takes half a minute, and saves ten seconds a file. g++ 12 compiles a file with the optimizations
# that its precompiled header was made with, whatever its own command line says, and from g++ 13 on, it refuses a header that was made
# with others. So all of them are compiled in the same way: with -O1, because the time of a step is spent in libtorch, and loops over
# elements are in files without torch. g++ would walk over the half gigabyte of the header again and again, too, to find memory that
# it can free.
function(gpipe_compile_like_torch_header target)
  gpipe_compile_quickly(${target})
  target_compile_options(${target} PRIVATE -fPIC "$<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=1500000>")
endfunction()
function(gpipe_reuse_torch_header target)
  target_precompile_headers(${target} REUSE_FROM gpipe_torch)
  gpipe_compile_like_torch_header(${target})
endfunction()
target_precompile_headers(gpipe_torch PRIVATE <torch/torch.h>)
gpipe_compile_like_torch_header(gpipe_torch)
gpipe_compile_together(gpipe_torch 16)
# The plain target: what Torch's own variable adds leaks absolute paths.
target_link_libraries(gpipe_torch PUBLIC gpipe::core torch OpenMP::OpenMP_CXX PRIVATE OpenSSL::Crypto gloo fmt::fmt $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> $<BUILD_INTERFACE:gpipe_warnings>)
# See the file there.
find_path(GPIPE_GLOO_MEMORY gloo/common/memory.h)
if(NOT GPIPE_GLOO_MEMORY)
  target_include_directories(gpipe_torch PRIVATE ${PROJECT_SOURCE_DIR}/gpipe/transport/c10d/missing)
endif()
# The bytes of packets go over MPI, too, where libtorch has it (Debian 13's does) and MPI's headers are there.
get_target_property(GPIPE_TORCH_DEFINITIONS torch_cpu INTERFACE_COMPILE_DEFINITIONS)
set(GPIPE_HAS_MPI OFF)
if("USE_C10D_MPI" IN_LIST GPIPE_TORCH_DEFINITIONS)
  find_package(MPI COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(GPIPE_HAS_MPI ON)
    target_sources(gpipe_torch PRIVATE gpipe/transport/c10d/mpi_carrier.cpp)
    set_source_files_properties(gpipe/transport/c10d/carrier.cpp PROPERTIES COMPILE_DEFINITIONS GPIPE_HAS_MPI)
    # The only one that sees its headers.
    set_source_files_properties(gpipe/transport/c10d/mpi_carrier.cpp PROPERTIES INCLUDE_DIRECTORIES "${MPI_CXX_INCLUDE_DIRS}")
    target_link_libraries(gpipe_torch PRIVATE $<LINK_ONLY:MPI::MPI_CXX>)
  endif()
endif()
