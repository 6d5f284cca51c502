"""A bundle for runc from a tag of an OCI layout, as a container engine makes it: no capabilities, read-only root, the image's own user.

container.py BUNDLE --layout FOLDER --tag TAG --unpacked BUNDLE --netns PATH --hosts FILE --volumes FOLDER [option…] [word…]
  --env KEY=VALUE          as in a manifest
  --mount SOURCE:TO[:ro]   a file or folder of this machine, or the name of a volume
  --command                the words take the place of the entry point (Kubernetes' command) and do not follow it (its args, Docker's command)
  --compose FILE SERVICE   environment, volumes, command and memory limit of that service
  --writable               the root can be written
The last line that it prints is the command of the service's health check, a word a line, if it has one.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("bundle", type=pathlib.Path)
for name in ("layout", "tag", "unpacked", "netns", "hosts", "volumes"):
    parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
parser.add_argument("--env", action="append", default=[])
parser.add_argument("--mount", action="append", default=[])
parser.add_argument("--compose", nargs=2)
parser.add_argument("--command", action="store_true")
parser.add_argument("--writable", action="store_true")
words = sys.argv[1:]
cut = words.index("--") if "--" in words else len(words)
options = parser.parse_args(words[:cut])
options.words = words[cut + 1 :]


def blob(digest):
    return json.loads((options.layout / "blobs" / digest.replace(":", "/")).read_bytes())


index = json.loads((options.layout / "index.json").read_bytes())
(manifest,) = [m for m in index["manifests"] if m["annotations"]["org.opencontainers.image.ref.name"] == str(options.tag)]
image = blob(blob(manifest["digest"])["config"]["digest"])["config"]

health, memory = None, None
if options.compose:
    import yaml

    file = pathlib.Path(options.compose[0])
    # As compose does it with a variable that has a default.
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: os.environ.get(found[1]) or found[2], file.read_text())
    service = yaml.safe_load(text)["services"][options.compose[1]]
    assert service["image"] == f"gantry:{options.tag}", f"{file} has image {service['image']}"
    options.words = shlex.split(service["command"])
    options.env += service.get("environment", [])
    options.mount += service.get("volumes", [])
    memory = service.get("mem_limit")
    health = service.get("healthcheck", {}).get("test")

config = json.loads((options.unpacked / "config.json").read_bytes())
process = config["process"]
process["terminal"] = False
process["args"] = options.words if options.command else image.get("Entrypoint", []) + (options.words or image.get("Cmd", []))
process["cwd"] = image["WorkingDir"]
process["env"] = image["Env"] + options.env
process["user"] = dict(zip(("uid", "gid"), map(int, image["User"].split(":"))))
process["capabilities"] = {kind: [] for kind in process["capabilities"]}
process["noNewPrivileges"] = True
# The example's 1,024 files are fewer than an engine gives.
files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
process["rlimits"] = [{"type": "RLIMIT_NOFILE", "hard": files, "soft": files}]
config["hostname"] = options.bundle.name
config["root"] = {"path": "rootfs", "readonly": not options.writable}
config["linux"]["namespaces"] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
config["linux"]["namespaces"].append({"type": "network", "path": str(options.netns)})


def in_root(path):
    """The place of a path of the image, whose links are absolute within it."""
    found = options.unpacked / "rootfs" / path.lstrip("/")
    return in_root(os.readlink(found)) if found.is_symlink() else found


if memory:
    assert memory.endswith("g"), f"{memory} is not in GiB"
    config["linux"].setdefault("resources", {})["memory"] = {"limit": int(memory[:-1]) << 30}
mounts = [f"{options.hosts}:/etc/hosts:ro"] + options.mount
# An engine makes a volume where the image declares one and nobody mounts anything.
mounts += [f"anonymous-{to.strip('/')}:{to}" for to in image.get("Volumes", {}) if not any(to in mount.split(":")[1:] for mount in mounts)]
for mount in mounts:
    source, to, *mode = mount.split(":")
    if "/" not in source:
        source = options.volumes / source
        if not source.exists():
            # A new volume takes over owner and mode of the folder of the image.
            source.mkdir(parents=True)
            folder = in_root(to).stat()
            os.chown(source, folder.st_uid, folder.st_gid)
            os.chmod(source, folder.st_mode & 0o7777)
    config["mounts"].append({"destination": to, "type": "bind", "source": str(source), "options": ["rbind", *(mode or ["rw"])]})

options.bundle.mkdir()
# Places to mount at are made in the root, so each container has one of its own. Links suffice: nobody writes into the files.
how = "-a" if options.writable else "-al"
subprocess.run(["cp", how, options.unpacked / "rootfs", options.bundle / "rootfs"], check=True)
(options.bundle / "config.json").write_text(json.dumps(config))
if health:
    assert health[0] == "CMD"
    print("\n".join(health[1:]))
