"""NCCL send and receive between two GPUs, for comparison: one process for each, wall time of the slower one, median."""

import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SHAPES = [("contiguous-16MiB", 1, 16 << 20), ("contiguous-1GiB", 1, 1 << 30), ("small-10000", 10000, 4096)]


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


def rank_main(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29631", RANK=str(rank), WORLD_SIZE="2")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for name, count, size in SHAPES:
        tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
        operation = dist.isend if rank == 0 else dist.irecv

        def move():
            batch = [dist.P2POp(operation, tensor, 1 - rank) for tensor in tensors]
            for work in dist.batch_isend_irecv(batch):
                work.wait()

        taken = timed(rank, move, 10 if count == 1 else 5)
        if rank == 0:
            print(json.dumps({"case": f"nccl {name}", "wall us": round(taken, 1), "GB/s": round(count * size / taken / 1e3, 1)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, nprocs=2)
