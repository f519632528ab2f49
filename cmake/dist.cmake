# The contents of dist/: the target `product` builds it, the install component `dist` puts it in place. tools/build.sh
# dist does both, and tools/install.sh copies dist/ into the system. Included last, when every target is known.

add_custom_target(product)
# The programs and libraries of `make demo`, which tools/build.sh demo puts into build/demo as dist/ has them.
add_custom_target(demonstration)

function(gpumux_in_dist folder)
  foreach(target ${ARGN})
    if(TARGET ${target})
      add_dependencies(product ${target})
      install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION ${folder} COMPONENT dist)
    endif()
  endforeach()
endfunction()

# Manual pages and completions, from what the programs and docs/ say.
find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)
set(share ${PROJECT_BINARY_DIR}/share)
set(plugin "")
if(TARGET gpumux_kubelet_plugin)
  set(plugin gpumux_kubelet_plugin)
endif()
file(GLOB told CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.md)
add_custom_command(
  OUTPUT ${share}/.made
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${share}
  COMMAND ${Python3_EXECUTABLE} -B tools/make_manuals.py --bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} --out ${share}
  COMMAND ${Python3_EXECUTABLE} -B tools/make_completions.py --bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} --out ${share}
  COMMAND ${CMAKE_COMMAND} -E touch ${share}/.made
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  DEPENDS gpumux gpumuxd ${plugin} tools/help_text.py tools/make_manuals.py tools/make_completions.py
    packaging/gpumux.toml.example ${told}
  COMMENT "Making manual pages and completions")
add_custom_target(gpumux_share DEPENDS ${share}/.made)
add_dependencies(product gpumux_share)
install(DIRECTORY ${share} DESTINATION . COMPONENT dist PATTERN .made EXCLUDE)

install(FILES ${GPUMUX_VERSION_FOLDER}/version.txt DESTINATION . COMPONENT dist)
# The leaf products that this build leaves out, one a line: tools/install.sh does not ask for their files.
get_property(left_out GLOBAL PROPERTY gpumux_left_out)
if(left_out)
  list(JOIN left_out "\n" left_out)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/left_out.txt CONTENT "${left_out}\n")
  install(FILES ${PROJECT_BINARY_DIR}/left_out.txt DESTINATION . COMPONENT dist)
endif()

function(gpumux_in_demonstration folder)
  foreach(target ${ARGN})
    add_dependencies(demonstration ${target})
    install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION ${folder} COMPONENT demonstration EXCLUDE_FROM_ALL)
  endforeach()
endfunction()
gpumux_in_demonstration(bin gpumux gpumuxd)
gpumux_in_demonstration(libexec/gpumux gpumux_runner_program)
gpumux_in_demonstration(demo gpumux_demo)
if(TARGET gpumux_preload)
  gpumux_in_demonstration(lib gpumux_preload)
  gpumux_in_demonstration(sim simulated_cuda simulated_nvml)
endif()

gpumux_in_dist(bin gpumux gpumuxd gpumux_kubelet_plugin)
# Links, there and where their users look for them: ./dist/mgpu_srun.
foreach(name ${GPUMUX_SEED_COMMANDS})
  install(CODE "
    file(CREATE_LINK gpumux \"\${CMAKE_INSTALL_PREFIX}/bin/${name}\" SYMBOLIC)
    file(CREATE_LINK bin/gpumux \"\${CMAKE_INSTALL_PREFIX}/${name}\" SYMBOLIC)" COMPONENT dist)
endforeach()
gpumux_in_dist(libexec/gpumux gpumux_runner_program gpumux_mover_program gpumux_cdi_hook)
gpumux_in_dist(lib gpumux_preload)
gpumux_in_dist(lib/gpumux spank_gpumux)
gpumux_in_dist(sim simulated_cuda simulated_nvml simulated_mps_control)
gpumux_in_dist(demo gpumux_demo)
