# Records the commit for `kvbench --version`. An sdist contains it as kvbench/_commit.txt.
set(CHECKOUT ${CMAKE_CURRENT_SOURCE_DIR}/..)
if(EXISTS ${CHECKOUT}/.git)
  set(COMMIT "")
  execute_process(
    COMMAND git -C ${CHECKOUT} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE COMMIT ERROR_QUIET)
  if(SKBUILD_STATE STREQUAL "sdist")
    file(WRITE ${CHECKOUT}/kvbench/_commit.txt "${COMMIT}\n")
  else()
    file(WRITE ${CMAKE_BINARY_DIR}/_commit.txt "${COMMIT}\n")
    install(FILES ${CMAKE_BINARY_DIR}/_commit.txt DESTINATION kvbench)
  endif()
endif()
