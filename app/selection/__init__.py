"""Which rails carried the traffic: records of selections, their acceptance against port counters, a rail selector.

The core imports nothing of the project. Its words are those of the RFC "TENT Multi-Rail RDMA Selection
Observability" (Mooncake issue 4598).
"""
