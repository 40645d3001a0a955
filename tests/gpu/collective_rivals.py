"""Collectives of NCCL and of PyTorch's symmetric memory, timed as `crossmesh bench allreduce` times its own.

collective_rivals.py RANKS: a process for each of as many GPUs. It says "ready VERSIONS", then answers each line of its
standard input, a question in JSON, by one line: answer {"what", "p50", "p99"}: microseconds of a call in a chain of calls, median
and 99th percentile over the chains, of the slowest rank; null where there is no such call, and "what" says why. Ends with
its standard input; exits with 3 where PyTorch or GPUs are missing.
"""

import json
import os
import socket
import subprocess
import sys



def leave(why):
    print(f"collective_rivals.py: {why}", file=sys.stderr)
    sys.exit(3)


try:
    import torch
    import torch.distributed as dist
except ImportError:
    leave("PyTorch is not installed for this python3, so there is nothing to compare with; install torch, or leave "
          "--against out")

# As in crossmesh: operands of a cold chain are used in turn until they exceed this.
CACHE = 256 << 20
# One-shot reads everything from everybody; beyond this it is far behind.
ONE_SHOT_MOST = 16 << 20
TYPES = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64,
         "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}
OPERATIONS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
              "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG}


class Missing(Exception):
    """There is no such call."""


def quantile(values, share):
    values = sorted(values)
    place = share * (len(values) - 1)
    low = int(place)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (place - low)


def timed(call, question):
    """Microseconds of a call: one number a chain, of the slowest rank."""
    stream, calls = torch.cuda.Stream(), question["calls"]
    swept = torch.empty(CACHE if question["cold"] else 1, dtype=torch.uint8, device="cuda")
    small = torch.zeros(1, device="cuda")

    def chain():
        for number in range(calls):
            call(number)

    with torch.cuda.stream(stream):
        chain()
    torch.cuda.synchronize()
    run = chain
    if question["captured"]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            chain()
        run = graph.replay
    dist.barrier()
    torch.cuda.synchronize()
    marks = []

    def mark():
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record(stream)

    with torch.cuda.stream(stream):
        dist.all_reduce(small)
        for number in range(question["warmups"] + question["samples"]):
            if question["cold"]:
                swept.zero_()
                dist.all_reduce(small)
            counts = number >= question["warmups"]
            if counts and (question["cold"] or number == question["warmups"]):
                mark()
            run()
            if counts:
                mark()
    torch.cuda.synchronize()
    step = 2 if question["cold"] else 1
    pairs = list(zip(marks, marks[1:]))[::step]
    times = torch.tensor([one.elapsed_time(other) * 1e3 / calls for one, other in pairs], device="cuda")
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.tolist()


def slots(question, size):
    """How many operands are used in turn."""
    if not question["cold"]:
        return 1
    return max(1, min(question["calls"], -(-CACHE // max(2 * size, 1))))


def values(count, dtype):
    if dtype.is_floating_point:
        return torch.randn(count, device="cuda").to(dtype)
    return torch.randint(0, 100, (count,), device="cuda").to(dtype)


def nccl(question, count, dtype, operation, ranks):
    kind, width = question["kind"], dtype.itemsize
    total = count * (ranks if kind in ("all_gather", "reduce_scatter") else 1)
    turns = slots(question, total * width)
    if kind in ("all_reduce", "broadcast"):
        data = [values(count, dtype) for _ in range(turns)]
        if kind == "all_reduce":
            return "all_reduce", lambda number: dist.all_reduce(data[number % turns], op=operation)
        root = question["root"]
        return "broadcast", lambda number: dist.broadcast(data[number % turns], src=(root + number) % ranks)
    parts, wholes = [values(count, dtype) for _ in range(turns)], [values(total, dtype) for _ in range(turns)]
    if kind == "all_gather":
        return kind, lambda number: dist.all_gather_into_tensor(wholes[number % turns], parts[number % turns])
    if kind == "reduce_scatter":
        return kind, lambda number: dist.reduce_scatter_tensor(parts[number % turns], wholes[number % turns], op=operation)
    raise Missing(f"nccl has no {kind}")


def symmetric(question, count, dtype, ranks):
    """Names and calls of symmetric memory's all-reduces."""
    if question["operation"] != "sum" or dtype not in (torch.bfloat16, torch.float32):
        raise Missing("symmetric memory sums bfloat16 and float")
    if question["kind"] not in ("all_reduce", "all_reduce_norm"):
        raise Missing(f"symmetric memory is measured for all_reduce, not for {question['kind']}")
    import torch.distributed._symmetric_memory as symm

    group = dist.group.WORLD.group_name
    size = count * dtype.itemsize
    if count == 0 or size % 16 != 0:
        raise Missing("symmetric memory takes multiples of 16 bytes")
    tensors = []
    for _ in range(slots(question, size)):
        tensor = symm.empty(count, dtype=dtype, device="cuda")
        symm.rendezvous(tensor, group)
        tensors.append(tensor.copy_(values(count, dtype)))
    of = lambda number: tensors[number % len(tensors)]
    found = [("two-shot", lambda number: torch.ops.symm_mem.two_shot_all_reduce_(of(number), "sum", group))]
    if size <= ONE_SHOT_MOST:
        found.append(("one-shot", lambda number: torch.ops.symm_mem.one_shot_all_reduce(of(number), "sum", group)))
    return found


def norm(question, dtype):
    """Residual addition and RMSNorm of rows."""
    hidden = question["hidden"]
    residual = values(question["count"], dtype).view(-1, hidden)
    weight = values(hidden, dtype)

    def add_and_norm(rows):
        residual.add_(rows.view(-1, hidden))
        return torch.nn.functional.rms_norm(residual, (hidden,), weight, 1e-5)

    return add_and_norm


def candidates(question, ranks):
    if question["dtype"] not in TYPES:
        raise Missing(f"{question['dtype']} is not measured")
    dtype, count = TYPES[question["dtype"]], question["count"]
    rival, kind = question["rival"], question["kind"]
    if kind == "norm":
        rows, after = values(count, dtype), norm(question, dtype)
        return [("addition and RMSNorm", lambda number: after(rows))]
    if kind == "all_reduce_norm":
        after = norm(question, dtype)
        if rival == "nccl":
            data = values(count, dtype)

            def reduce_and_norm(number):
                dist.all_reduce(data)
                after(data)

            return [("all_reduce, addition, RMSNorm", reduce_and_norm)]

        def then_norm(call):
            return lambda number: after(call(number))

        return [(f"{name}, addition, RMSNorm", then_norm(call)) for name, call in symmetric(question, count, dtype, ranks)]
    if rival == "nccl":
        return [nccl(question, count, dtype, OPERATIONS[question["operation"]], ranks)]
    return symmetric(question, count, dtype, ranks)


def answer(question, ranks):
    try:
        best = None
        for what, call in candidates(question, ranks):
            times = timed(call, question)
            found = {"what": what, "p50": round(quantile(times, 0.5), 3), "p99": round(quantile(times, 0.99), 3)}
            best = found if best is None or found["p50"] < best["p50"] else best
        return best
    except Missing as missing:
        return {"what": str(missing), "p50": None, "p99": None}
    except RuntimeError as error:
        print(f"collective_rivals.py: {question}: {error}", file=sys.stderr)
        return {"what": f"failed: {str(error).splitlines()[0]}", "p50": None, "p99": None}


def serve(rank, ranks):
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    dist.all_reduce(torch.zeros(1, device="cuda"))
    if rank == 0:
        version = ".".join(str(part) for part in torch.cuda.nccl.version())
        print(f"ready PyTorch {torch.__version__}, NCCL {version}", flush=True)
    while True:
        line = [sys.stdin.readline() if rank == 0 else None]
        dist.broadcast_object_list(line, src=0, device=torch.device("cpu"))
        if not line[0].strip():
            break
        found = answer(json.loads(line[0]), ranks)
        if rank == 0:
            print("answer " + json.dumps(found), flush=True)
    dist.destroy_process_group()


def main():
    ranks = int(sys.argv[1])
    if torch.cuda.device_count() < ranks:
        leave(f"{ranks} ranks need a GPU each, and PyTorch sees {torch.cuda.device_count()}")
    if "RANK" in os.environ and "CHILD" in os.environ:
        return serve(int(os.environ["RANK"]), ranks)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    children = []
    for rank in range(1, ranks):
        environment = {**os.environ, "RANK": str(rank), "CHILD": "1"}
        children.append(subprocess.Popen([sys.executable, *sys.argv], env=environment, stdin=subprocess.DEVNULL))
    try:
        serve(0, ranks)
    finally:
        for child in children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()


if __name__ == "__main__":
    main()
