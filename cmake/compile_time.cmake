# What keeps the time of a whole build down. Where it goes (ninja's log, -ftime-report): in files on libtorch, to templates that
# each of them instantiates again, six seconds for an empty file with the precompiled header, and to the optimizer.

# gpipe_compile_together(TARGET COUNT): with GPIPE_UNITY, up to so many files of the target are compiled as one, so that they
# share what they include and instantiate. Helpers in unnamed namespaces of these files need different names, therefore.
function(gpipe_compile_together target count)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${GPIPE_UNITY} UNITY_BUILD_BATCH_SIZE ${count})
endfunction()

# gpipe_compile_unit(TARGET NUMBER FILE...): adds files to the target that are compiled as one with GPIPE_UNITY. For targets with
# helpers of the same names in several files. A file that is added to the target in another way is compiled by itself.
function(gpipe_compile_unit target number)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${GPIPE_UNITY} UNITY_BUILD_MODE GROUP)
  target_sources(${target} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${number})
endfunction()

# gpipe_compile_quickly(TARGET): with -O1, for what spends its time elsewhere, in libtorch or in gpipe::core.
function(gpipe_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()
