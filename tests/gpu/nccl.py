"""NCCL send and receive between two GPUs, for comparison: one process for each, wall time of the slower one, median."""

import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Name, bytes of each tensor; from rank 0 to rank 1.
ONE_WAY = [("contiguous-16MiB", [16 << 20]), ("contiguous-1GiB", [1 << 30]), ("small-10000", [4096] * 10000)]
# Shards of Qwen3-32B at tensor parallel 2, which the ranks swap: what the case of this name moves.
LAYER = [8192 * 5120, 1024 * 5120, 1024 * 5120, 5120 * 8192, 25600 * 5120, 25600 * 5120, 25600 * 5120]
QWEN = [151936 * 5120] * 2 + LAYER * 64


def timed(rank, call, rounds):
    times = []
    for number in range(rounds + 2):
        dist.barrier()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken = torch.tensor([time.perf_counter() - begun], device="cuda")
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        if number >= 2:
            times.append(taken.item() * 1e6)
    times.sort()
    return times[len(times) // 2]


def measure(rank, name, operations, size):
    def move():
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    taken = timed(rank, move, 10 if len(operations) == 1 else 5)
    if rank == 0:
        rate = round(size / taken / 1e3, 1)
        print(json.dumps({"case": f"nccl {name}", "wall us": round(taken, 1), "GB/s one way": rate}), flush=True)


def rank_main(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29631", RANK=str(rank), WORLD_SIZE="2")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for name, sizes in ONE_WAY:
        tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
        operation = dist.isend if rank == 0 else dist.irecv
        measure(rank, name, [dist.P2POp(operation, tensor, 1 - rank) for tensor in tensors], sum(sizes))
    # Two bytes an element, half of them here.
    make = lambda: [torch.empty(elements, dtype=torch.uint8, device="cuda") for elements in QWEN]
    ours, theirs = make(), make()
    swap = [dist.P2POp(dist.isend, tensor, 1 - rank) for tensor in ours]
    swap += [dist.P2POp(dist.irecv, tensor, 1 - rank) for tensor in theirs]
    measure(rank, "qwen3-32b", swap, sum(QWEN))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, nprocs=2)
