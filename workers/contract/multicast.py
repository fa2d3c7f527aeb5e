"""The environment without which no process of ours may share memory between GPUs.

NVLink multicast maps one object into several GPUs, through the host's fabric manager. A process
that ends badly while it holds such an object can put all GPUs of the host out of service for a day,
for everyone. It is never worth that here: activations go from one GPU to one other.
"""

NO_MULTICAST = {
    # Else every rendezvous of torch's symmetric memory makes a multicast object.
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    # NVLS are NCCL's collectives over multicast.
    "NCCL_NVLS_ENABLE": "0",
}
"""Set for every worker, whatever the daemon's own environment says."""
