#!/usr/bin/env python3
"""Reads a checkpoint; written from FORMAT.md alone, with only the standard library of Python 3.9 or later.

    read_checkpoint.py STEP_DIR                what it holds, as JSON, after every byte was checked
    read_checkpoint.py STEP_DIR ROLE NAME      the bytes of a tensor, row-major and little-endian, to standard output

Ends with 1 and one line on standard error when the checkpoint is damaged or not of the format. About 10 MB/s.
"""
import itertools, json, math, os, re, struct, sys
# XXH3-128 with seed 0: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
MASK = (1 << 64) - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)

def word(data, at, size=8):
    return int.from_bytes(data[at : at + size], "little")
def secrets(at, size=8):
    return word(SECRET, at, size) ^ word(SECRET, at + size, size)
def swap(value, size):
    return int.from_bytes(value.to_bytes(size, "little"), "big")
def scramble(h, shift, factor):
    return ((h ^ h >> shift) * factor) & MASK
def avalanche(h):
    h = scramble(h, 37, 0x165667919E3779F9)
    return h ^ h >> 32
def avalanche_xxh64(h):
    h = scramble(scramble(h, 33, P64[1]), 29, P64[2])
    return h ^ h >> 32
def fold(a, b):
    return (a * b & MASK) ^ (a * b >> 64)
def mix(data, at, secret):
    return fold(word(data, at) ^ word(SECRET, secret), word(data, at + 8) ^ word(SECRET, secret + 8))

def mix_pair(acc, data, first, second, secret):
    low = (acc[0] + mix(data, first, secret)) & MASK ^ (word(data, second) + word(data, second + 8)) & MASK
    high = (acc[1] + mix(data, second, secret + 16)) & MASK ^ (word(data, first) + word(data, first + 8)) & MASK
    return low, high

def small(data):
    size = len(data)
    if size == 0: return avalanche_xxh64(secrets(64)), avalanche_xxh64(secrets(80))
    if size <= 3:
        combined = data[-1] | size << 8 | data[0] << 16 | data[size >> 1] << 24
        swapped = swap(combined, 4)
        rotated = (swapped << 13 | swapped >> 19) & 0xFFFFFFFF
        return avalanche_xxh64(secrets(0, 4) ^ combined), avalanche_xxh64(secrets(8, 4) ^ rotated)
    if size <= 8:
        value = word(data, 0, 4) | word(data, size - 4, 4) << 32
        product = (secrets(16) ^ value) * (P64[0] + (size << 2))
        high = ((product >> 64) + (product << 1 & MASK)) & MASK
        low = scramble(product & MASK ^ high >> 3, 35, 0x9FB21C651E98DF25)
        return low ^ low >> 28, avalanche(high)
    first, last = word(data, 0), word(data, size - 8)
    product = (secrets(32) ^ first ^ last) * P64[0]
    other = secrets(48) ^ last
    low = ((product & MASK) + ((size - 1) << 54)) & MASK
    high = ((product >> 64) + (other >> 32 << 32) + (other & 0xFFFFFFFF) * P32[1]) & MASK
    product = (low ^ swap(high, 8)) * P64[1]
    return avalanche(product & MASK), avalanche(((product >> 64) + high * P64[1]) & MASK)

def medium(data):
    size = len(data)
    acc = ((size * P64[0]) & MASK, 0)
    if size <= 128:
        for i in range((size - 1) // 32, -1, -1):
            acc = mix_pair(acc, data, 16 * i, size - 16 * (i + 1), 32 * i)
    else:
        for i in range(size // 32):
            acc = mix_pair(acc, data, 32 * i, 32 * i + 16, 32 * i if i < 4 else 32 * i - 125)
            acc = (avalanche(acc[0]), avalanche(acc[1])) if i == 3 else acc
        acc = mix_pair(acc, data, size - 16, size - 32, 103)
    high = (acc[0] * P64[0] + acc[1] * P64[3] + size * P64[1]) & MASK
    return avalanche((acc[0] + acc[1]) & MASK), -avalanche(high) & MASK

def large(data):
    size, words = len(data), struct.Struct("<8Q").unpack_from
    acc = [P32[2], *P64[:4], P32[1], P64[4], P32[0]]

    def accumulate(at, secret):
        for i, value in enumerate(words(data, at)):
            acc[i ^ 1] += value
            value ^= secret[i]
            acc[i] += (value & 0xFFFFFFFF) * (value >> 32)

    def merged(start, at):
        secret = words(SECRET, at)
        pairs = [value ^ key for value, key in zip(acc, secret)]
        return avalanche((start + sum(map(fold, pairs[0::2], pairs[1::2]))) & MASK)

    stripes = [words(SECRET, at) for at in range(0, 136, 8)]
    for stripe in range((size - 1) // 64):
        accumulate(64 * stripe, stripes[stripe % 16])
        if stripe % 16 == 15:
            values = (value & MASK for value in acc)
            acc = [((v ^ v >> 47 ^ secret) * P32[0]) & MASK for v, secret in zip(values, stripes[16])]
    accumulate(size - 64, words(SECRET, 121))
    acc = [value & MASK for value in acc]
    return merged(size * P64[0], 11), merged(~(size * P64[1]) & MASK, 117)
def digest(data):
    low, high = small(data) if len(data) <= 16 else medium(data) if len(data) <= 240 else large(data)
    return f"{high << 64 | low:032x}"

class Bad(ValueError):
    """Damage, or a violation of the format."""
def need(holds, *what):
    if not holds:
        raise Bad(" ".join(map(str, what)))

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
SIZES.update({"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8})
SCALARS = {"int": "-?[0-9]+", "uint": "[0-9]+", "bool": "True|False", "float": "'[0-9a-f]{16}'"}
HEX = re.compile("[0-9a-f]{32}")
def no_doubles(pairs):
    need(len(fields := dict(pairs)) == len(pairs), "a field is duplicated")
    return fields
def parse(text):
    integer = lambda digits: int(digits) if digits != "-0" else -0.0
    return json.loads(text.decode("utf-8"), object_pairs_hook=no_doubles, parse_constant=int, parse_int=integer)
def nesting(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(nesting, inner), default=0)
def get(entry, field, kind, most=(1 << 64) - 1):
    need(isinstance(entry, dict) and type(entry.get(field)) is kind, "field", field, "is missing or has another type")
    need(kind is not int or 0 <= entry[field] <= most, "field", field, "is out of range")
    return entry[field]
def get_digest(entry, field):
    need(HEX.fullmatch(get(entry, field, str)), "field", field, "is not a digest")
    return entry[field]
def get_name(entry, name=None):
    name = get(entry, "name", str) if name is None else name
    need(isinstance(name, str) and 1 <= len(name.encode()) <= 4096 and name != "__metadata__", "a name", name)
    return name
def get_numbers(entry, field):
    values = get(entry, field, list)
    need(len(values) <= 32 and all(type(v) is int and 0 <= v < 1 << 64 for v in values), "field", field, "is not a shape")
    return values
def rising(what, keys):
    need(all(a < b for a, b in zip(keys, keys[1:])), "the list of", what, "is not sorted")
def bytes_of(shape, dtype):
    need(SIZES[dtype] * math.prod(max(d, 1) for d in shape) < 1 << 63, "a tensor is too large")
    return SIZES[dtype] * math.prod(shape)

class Checkpoint:
    """A checkpoint with a validated manifest; every byte is checked when it is read."""
    def __init__(self, step_dir):
        self.dir = step_dir
        with open(os.path.join(step_dir, "manifest.json"), "rb") as file:
            data = file.read((256 << 20) + 1)
        need(len(data) <= 256 << 20, "the manifest is too large")
        around = re.fullmatch(rb'\{"xxh3_128":"([0-9a-f]{32})","body":(.*)\}\n', data, re.DOTALL)
        need(around, "the bytes around the digest are damaged")
        need(digest(around[2]) == around[1].decode(), "the manifest has another digest")
        self.manifest = m = parse(around[2])
        need(get(m, "format", str) == "tinderbox-checkpoint" and len(m) <= 1024, "another format")
        need(get(m, "version", int) == 1, "version", m["version"], "is not supported")
        need(m.get("required_features", []) == [], "the feature", m.get("required_features"), "is not supported")
        self._check_run(m)
        self.files = {f["name"]: f for f in map(self._check_file, get(m, "files", list))}
        rising("files", [f["name"] for f in m["files"]])
        rising("tensors", [(get(t, "role", str), get_name(t)) for t in get(m, "tensors", list)])
        self.tensors = {(t["role"], get_name(t, n)): t for t in m["tensors"] for n in [t["name"], *t.get("tied", [])]}
        tied = sum(len(t.get("tied", [])) for t in m["tensors"])
        unique = len(self.tensors) == len(m["tensors"]) + tied
        need(unique and tied <= 65536, "a name is duplicated, or there are too many names")
        spans = {name: [] for name in self.files}
        for tensor in m["tensors"]:
            rising("tied names", get({"tied": [], **tensor}, "tied", list))
            self._check_tensor(tensor, spans)
        for name, f in self.files.items():
            end = f["header_bytes"]
            for start, size in sorted(spans[name]):
                need(start == end, "bytes of", name, "are in no chunk or in two")
                end += size
            need(spans[name] and end == f["size_bytes"], "bytes of", name, "are in no chunk")
        whole = [len(t["chunks"]) == 1 for t in m["tensors"] if t["role"] == "model"]
        index = self._document("index", "model.safetensors.index.json")
        need((index is not None) == (bool(whole) and all(whole)), "the index does not match the chunks")
        minor = get({"minor": 0, **m}, "minor", int, (1 << 32) - 1)
        self.plan = self._document("plan", "plan.json") if minor else m.get("plan")

    def _check_run(self, m):
        step, name = get(m, "step", int), os.path.basename(os.path.abspath(self.dir))
        need(not re.fullmatch("step-[0-9]{8,}", name) or name == f"step-{step:08}", "the directory name has another step")
        get_digest(m, "attempt"), get(m, "seed", int), get(m, "data_position", int)
        need(get(m, "world_size", int, 65536) >= 1, "no ranks")
        self.block = get(m, "block_bytes", int, 1 << 26)
        need(self.block >= 64 and self.block & (self.block - 1) == 0, "blocks of", self.block, "bytes")
        for field, limit in (("metadata", 1 << 20), ("plan", 16 << 20)):
            size = len(json.dumps(m[field], ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
            need(size <= limit and nesting(m[field]) <= 126, field, "is too large or nested too deeply")
        rising("scalars", [get_name(s) for s in get(m, "scalars", list)])
        for scalar in m["scalars"]:
            [(kind, value)] = get(scalar, "value", dict).items()
            need(re.fullmatch(SCALARS.get(kind, "-"), repr(value)), "the value of scalar", scalar["name"])
            bits = {"int": 63, "uint": 64}.get(kind)
            need(bits is None or -1 << 63 <= value < 1 << bits, "the value of scalar", scalar["name"])

    def _document(self, field, name):
        if (entry := self.manifest.get(field)) is None: return None
        data = self._read(name, get(entry, "size_bytes", int), 0, entry["size_bytes"])
        need(digest(data) == get_digest(entry, "digest"), name, "is damaged")
        return parse(data)

    def _check_file(self, f):
        role, rank, number = get(f, "role", str), get(f, "rank", int), get(f, "number", int, 99_999)
        need(role in ("model", "state") and rank < self.manifest["world_size"], "a file of", role, rank)
        numbers = ["" if n == 0 else f"-{n:05}" for n in (max(0, number - 1), number)]
        names = [f"{role}-rank-{rank:05}{n}.safetensors" for n in numbers]
        need(get(f, "name", str) == names[-1], "unexpected file name:", repr(f["name"])[:80])
        need(any(other.get("name") == names[0] for other in self.manifest["files"]), "no file", names[0])
        get_digest(f, "header_digest")
        need(8 < get(f, "header_bytes", int, 100_000_008) <= get(f, "size_bytes", int), "the header of", names[-1])
        self._read(f["name"], f["size_bytes"], 0, 0)
        return f

    def _check_tensor(self, t, spans):
        name, shape = t["name"], get_numbers(t, "shape")
        need(t["role"] in ("model", "state") and get(t, "dtype", str) in SIZES, "role or dtype of", name)
        need(1 <= len(get(t, "chunks", list)) <= 65536, "the number of chunks of", name)
        boxes = [(get_numbers(c, "offset"), get_numbers(c, "size")) for c in t["chunks"]]
        rising("chunks", boxes)
        for c, (offset, size) in zip(t["chunks"], boxes):
            inside = len(offset) == len(size) == len(shape) and all(o + s <= d for o, s, d in zip(offset, size, shape))
            need(inside and (0 not in size or size == shape), "a chunk of", name, "is empty or outside")
            need(get(c, "len_bytes", int) == bytes_of(size, t["dtype"]), "the bytes of a chunk of", name)
            need(len(get(c, "digests", list)) == -(-c["len_bytes"] // self.block), "the digests of a chunk of", name)
            need(all(isinstance(d, str) and HEX.fullmatch(d) for d in c["digests"]), "a digest of", name)
            need(get(c, "file", str) in spans and c["file"].startswith(t["role"]), "the file of a chunk of", name)
            spans[c["file"]].append((get(c, "start_bytes", int), c["len_bytes"]))
        need(sum(c["len_bytes"] for c in t["chunks"]) == bytes_of(shape, t["dtype"]), name, "is not tiled")
        for i, (o, s) in enumerate(boxes):
            for p, q in boxes[i + 1 :]:
                if not shape or p[0] >= o[0] + s[0]:
                    break
                apart = any(a + n <= b or b + k <= a for a, n, b, k in zip(o, s, p, q))
                need(apart, "chunks of", name, "overlap")

    def _read(self, name, file_bytes, start, size):
        path = os.path.join(self.dir, name)
        plain = os.path.isfile(path) and not os.path.islink(path)
        need(plain and os.path.getsize(path) == file_bytes, path, "is not a regular file of", file_bytes, "bytes")
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(size)

    def check_header(self, f):  # it must list exactly the tensors of the manifest
        header = self._read(f["name"], f["size_bytes"], 0, f["header_bytes"])
        need(digest(header) == f["header_digest"], "the header of", f["name"], "is damaged")
        need(word(header, 0) == len(header) - 8 and header[8:9] == b"{", "the header of", f["name"])
        found = parse(header[8:])
        found.pop("__metadata__", None)
        for t, c in ((t, c) for t in self.manifest["tensors"] for c in t["chunks"] if c["file"] == f["name"]):
            ranges = ", ".join(f"{o}..{o + s}" for o, s in zip(c["offset"], c["size"]))
            start = c["start_bytes"] - f["header_bytes"]
            listed = {"dtype": t["dtype"], "shape": c["size"], "data_offsets": [start, start + c["len_bytes"]]}
            key = t["name"] if c["size"] == t["shape"] else f"{t['name']}[{ranges}]"
            same = json.dumps(found.pop(key, None), sort_keys=True) == json.dumps(listed, sort_keys=True)
            need(same, "the header of", f["name"], "has another", key)
        need(not found, "the header of", f["name"], "has more:", list(found)[:3])

    def read(self, role, name):
        """Returns the bytes of a tensor, by its own name or a tied one."""
        t = self.tensors[role, name]
        item = SIZES[t["dtype"]]
        strides = [item * math.prod(t["shape"][d + 1 :]) for d in range(len(t["shape"]))]
        result = bytearray(bytes_of(t["shape"], t["dtype"]))
        for c in t["chunks"]:
            data = self._read(c["file"], self.files[c["file"]]["size_bytes"], c["start_bytes"], c["len_bytes"])
            for i, expected in enumerate(c["digests"]):
                block = data[i * self.block : (i + 1) * self.block]
                need(digest(block) == expected, "block", i, "of", name, "in", c["file"], "is damaged")
            need(t["dtype"] != "BOOL" or not data.strip(b"\0\1"), name, "has a boolean that is neither 0 nor 1")
            row = item * (c["size"][-1] if c["size"] else 1)
            for i, index in enumerate(itertools.product(*map(range, c["size"][:-1]))):
                at = sum((o + j) * stride for o, j, stride in zip(c["offset"], (*index, 0), strides))
                result[at : at + row] = data[i * row : (i + 1) * row]
        return bytes(result)

def main(step_dir, *wanted):
    checkpoint = Checkpoint(step_dir)
    for f in checkpoint.files.values():
        checkpoint.check_header(f)
    if wanted:
        sys.stdout.buffer.write(checkpoint.read(*wanted))
        return
    m = checkpoint.manifest
    of = lambda t: [t["role"], t["name"], t["dtype"], t["shape"], digest(checkpoint.read(t["role"], t["name"]))]
    fields = {field: m[field] for field in ("step", "seed", "data_position", "world_size", "metadata", "scalars")}
    print(json.dumps({**fields, "plan": checkpoint.plan, "tensors": [of(t) for t in m["tensors"]]}))

if __name__ == "__main__":
    if len(sys.argv) not in (2, 4): sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
