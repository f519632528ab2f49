# What dist/ holds: the target `product` builds it, the install component `dist` puts it in place. tools/build.sh dist
# does both, and tools/install.sh copies dist/ into the system. Included last, when every target is known.

add_custom_target(product)

function(gpumux_in_dist folder)
  foreach(target ${ARGN})
    if(TARGET ${target})
      add_dependencies(product ${target})
      install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION ${folder} COMPONENT dist)
    endif()
  endforeach()
endfunction()

gpumux_in_dist(bin gpumux gpumuxd)
gpumux_in_dist(lib gpumux_preload)
gpumux_in_dist(sim simulated_cuda simulated_nvml)
gpumux_in_dist(demo gpumux_demo)
