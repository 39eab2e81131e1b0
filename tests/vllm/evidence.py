"""What the scorer wrote about a request: read back from shared data, decoded and counted here, on
purpose with no code of the module. The record is described in docs/shared-data.md, section 5."""

import struct
from dataclasses import dataclass

BUCKETS = 4096
OWN_TIERS = ("gpu", "speculative")


def key(request_id):
    """The key of the record that may hold the request."""
    hashed = 0xCBF29CE484222325
    for byte in request_id.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return f"selective-kv/1/evidence/{hashed % BUCKETS}"


@dataclass(frozen=True)
class Prompt:
    """Blocks of one prompt, as the engine is expected to use them."""

    gpu: int
    external: int
    runs: list


@dataclass(frozen=True)
class Evidence:
    """What is said of one endpoint for one request."""

    block_size: int
    prompts: list
    partial: bool

    @property
    def gpu_tokens(self):
        return self.block_size * sum(prompt.gpu for prompt in self.prompts)

    @property
    def external_tokens(self):
        return self.block_size * sum(prompt.external for prompt in self.prompts)


def find(record, request_id, endpoint):
    """The evidence in a record's bytes, or None."""
    value, end = decode(record)
    if end != len(record):
        raise ValueError(f"{len(record) - end} bytes behind the record")
    entry = [entry for entry in value["requests"] if entry["id"] == request_id][-1:]
    said = entry[0]["endpoints"].get(endpoint) if entry else None
    if said is None:
        return None
    prompts = [count(prompt["runs"]) for prompt in said["prompts"]]
    return Evidence(entry[0]["block_size"], prompts, said.get("partial", False))


def count(runs):
    """The GPU prefix, and the external blocks behind it up to the first gap."""
    blocks = [set(tiers) for length, tiers in runs for _ in range(length)]
    gpu = 0
    while gpu < len(blocks) and "gpu" in blocks[gpu]:
        gpu += 1
    end = gpu
    while end < len(blocks) and blocks[end].difference(OWN_TIERS):
        end += 1
    return Prompt(gpu, end - gpu, runs)


def decode(data, at=0):
    """One CBOR item (RFC 8949) of definite length, and where it ends."""
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if info < 24:
        argument = info
    elif info < 28:
        size = 1 << (info - 24)
        argument, at = int.from_bytes(data[at : at + size], "big"), at + size
    else:
        raise ValueError(f"CBOR head {data[at - 1]:#x}")
    if major == 0:
        return argument, at
    if major == 1:
        return -1 - argument, at
    if major == 2:
        return data[at : at + argument], at + argument
    if major == 3:
        return data[at : at + argument].decode(), at + argument
    if major == 4:
        items = []
        for _ in range(argument):
            item, at = decode(data, at)
            items.append(item)
        return items, at
    if major == 5:
        pairs = {}
        for _ in range(argument):
            name, at = decode(data, at)
            pairs[name], at = decode(data, at)
        return pairs, at
    if major == 7 and info == 27:
        return struct.unpack(">d", argument.to_bytes(8, "big"))[0], at
    if major == 7 and info in (20, 21, 22):
        return (False, True, None)[info - 20], at
    raise ValueError(f"CBOR major type {major}, info {info}")
