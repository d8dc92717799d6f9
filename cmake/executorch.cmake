# Finds ExecuTorch: where CMAKE_PREFIX_PATH says, else in the Python that is on the PATH (or Python_EXECUTABLE).

find_package(executorch 1.5 QUIET CONFIG)
if(NOT TARGET executorch::runtime)
  find_package(Python COMPONENTS Interpreter QUIET)
  if(Python_FOUND)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c
        "import importlib.util as u; s = u.find_spec('executorch'); print(list(s.submodule_search_locations)[0] if s else '')"
      OUTPUT_VARIABLE executorch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(executorch_root)
      list(APPEND CMAKE_PREFIX_PATH "${executorch_root}")
    endif()
  endif()
  find_package(executorch 1.5 REQUIRED CONFIG)
endif()
if(NOT TARGET executorch::runtime)
  message(FATAL_ERROR "This ExecuTorch package has no C++ runtime (target executorch::runtime). "
    "Install the wheel executorch >= 1.5.1, or point CMAKE_PREFIX_PATH to <site-packages>/executorch.")
endif()

# The root of the package, for projects that are configured from here.
get_target_property(executorch_library executorch::runtime IMPORTED_LOCATION)
get_filename_component(executorch_library_dir "${executorch_library}" DIRECTORY)
file(REAL_PATH "${executorch_library_dir}" executorch_library_dir)
get_filename_component(EXECUTORCH_PREFIX "${executorch_library_dir}" DIRECTORY)
