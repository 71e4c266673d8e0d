#!/usr/bin/env bash
# Two sessions of icechunk that set different attributes of one group conflict, and the conflict cannot be resolved by either
# policy: BasicConflictSolver has settings for chunks only. Two that write different chunks of one array do merge.
# Expected: different keys of attributes merge as different chunks do. Seen with icechunk 1.1.21 and zarr 3.1.6.
set -euo pipefail
home=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$home"' EXIT
python3 -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check 'icechunk==1.1.21' 'zarr==3.1.6'
"$home/v/bin/python" - "$home" <<'END'
import icechunk
import zarr

repo = icechunk.Repository.create(icechunk.in_memory_storage())
session = repo.writable_session("main")
zarr.group(session.store).create_array("x", shape=(100,), chunks=(10,), dtype="i8")[:] = 0
session.commit("begin")

def both(first, second, solver):
    one, other = repo.writable_session("main"), repo.writable_session("main")
    first(zarr.open_group(one.store))
    second(zarr.open_group(other.store))
    one.commit("one")
    try:
        other.commit("other", rebase_with=solver)
        return "merged"
    except icechunk.RebaseFailedError:
        return "refused"

def chunk(number):
    def write(group):
        group["x"][number * 10] = 1
    return write

def attribute(name):
    def write(group):
        group.attrs[name] = 1
    return write

seen = [both(chunk(0), chunk(5), icechunk.ConflictDetector()), both(attribute("a"), attribute("b"), icechunk.ConflictDetector()),
        both(attribute("c"), attribute("d"), icechunk.BasicConflictSolver())]
print(seen)
assert seen == ["merged", "refused", "refused"]
END
