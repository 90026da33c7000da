"""Reads or writes a safetensors file with nothing but the standard library, from the format's description alone.

    independent_reader.py read FILE     prints {name: [dtype, shape, hexadecimal bytes]} as JSON
    independent_reader.py write FILE    writes such JSON from standard input to a file
"""
import json, struct, sys

def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: [t["dtype"], t["shape"], data[slice(*t["data_offsets"])].hex()] for name, t in header.items()}

def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        begin, data = len(data), data + bytes.fromhex(values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)

if __name__ == "__main__":
    if sys.argv[1] == "read":
        json.dump(read(sys.argv[2]), sys.stdout)
    else:
        write(sys.argv[2], json.load(sys.stdin))
