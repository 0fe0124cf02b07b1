# Adds the verbs transport to farpage_rdma; without libibverbs headers, a stub that reports its
# absence. libibverbs is loaded at run time, so nothing links to it.
if(FARPAGE_HAVE_VERBS)
  target_sources(farpage_rdma PRIVATE
    verbs/async_events.cc
    verbs/choices.cc
    verbs/operation_ring.cc
    verbs/port_facts.cc
    verbs/queue_pair.cc
    verbs/resources.cc
    verbs/verbs.cc
    verbs/verbs_channel.cc
    verbs/verbs_library.cc
    verbs/verbs_memory_host.cc
    verbs/verbs_transport.cc)
  target_include_directories(farpage_rdma SYSTEM PRIVATE ${FARPAGE_VERBS_INCLUDE})
  target_link_libraries(farpage_rdma PRIVATE farpage::log Threads::Threads ${CMAKE_DL_LIBS})
else()
  target_sources(farpage_rdma PRIVATE verbs/verbs_absent.cc)
endif()
