# Installs the library, its headers, the tools and a package for find_package(weightstream).

include(CMakePackageConfigHelpers)

# The wheel of ExecuTorch may lie anywhere: keep the place it was found in, and look beside the library first. A wheel of ours
# has a copy of its runtime, 0.6 MB, so that running needs nothing else.
if(SKBUILD)
  set(executorch_copy ${CMAKE_INSTALL_LIBDIR}/executorch)
  install(FILES "${executorch_library}" "${executorch_library_dir}/libexecutorch_threadpool.so"
    DESTINATION ${executorch_copy} COMPONENT runtime)
  file(GLOB executorch_licence "${EXECUTORCH_PREFIX}/../executorch-*.dist-info/licenses/LICENSE")
  install(FILES ${executorch_licence} DESTINATION ${executorch_copy} COMPONENT runtime)
  # ExecuTorch's package asks for its own place in what links with it, which would be the builder's.
  foreach(part executorch::runtime executorch::threadpool)
    get_target_property(options ${part} INTERFACE_LINK_OPTIONS)
    list(FILTER options EXCLUDE REGEX "^LINKER:-rpath,")
    set_target_properties(${part} PROPERTIES INTERFACE_LINK_OPTIONS "${options}")
  endforeach()
  set(executorch_rpath "$ORIGIN/executorch")
  set(executorch_tools_rpath "$ORIGIN/../${executorch_copy}")
else()
  set(executorch_rpath "${executorch_library_dir}")
  set(executorch_tools_rpath "${executorch_library_dir}")
endif()
set_target_properties(weightstream PROPERTIES INSTALL_RPATH "$ORIGIN;${executorch_rpath}")

install(TARGETS weightstream EXPORT weightstreamTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
install(DIRECTORY cpp/include/weightstream DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h" PATTERN "detail" EXCLUDE)
if(TARGET weightstream-run)
  set(tools weightstream-run weightstream-generate)
  set_target_properties(${tools} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${executorch_tools_rpath}")
  install(TARGETS ${tools} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()

# For linking into an application. Not in the wheel: it would be five times as large.
if(NOT SKBUILD)
  install(TARGETS weightstream_static weightstream_objects EXPORT weightstreamTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  install(FILES "${rust_library}" RENAME libweightstream_rust.a
    DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
endif()

# Nine tenths of what cargo builds are names and lines for debuggers.
function(strip_installed component)
  foreach(file IN LISTS ARGN)
    install(CODE "execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-debug --strip-unneeded
      \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${file}\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${component})
  endforeach()
endfunction()
strip_installed(runtime ${CMAKE_INSTALL_LIBDIR}/libweightstream.so)
if(TARGET weightstream-generate)
  strip_installed(tools ${CMAKE_INSTALL_BINDIR}/weightstream-generate)
endif()
if(NOT SKBUILD)
  strip_installed(development ${CMAKE_INSTALL_LIBDIR}/libweightstream_rust.a)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weightstream)
install(EXPORT weightstreamTargets NAMESPACE weightstream:: DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(cmake/weightstreamConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/weightstreamConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/weightstreamConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/weightstreamConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/weightstreamConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)
