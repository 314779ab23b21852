#!/usr/bin/env bash
# Checks a machine with an NVIDIA GPU that reaches no registry: parity with the CPU, then speed and memory beside its PyTorch.
#
# Run      scripts/gpu_check.sh CARRY OUT.json [DEVICE...]        (default: vulkan and cuda; what the program lacks is passed over)
# Needs    CARRY/bench_step, built elsewhere and carried here (it builds nothing):
#              cargo rustc --profile dist -p tiebreak-train --example bench_step --features wgpu,vulkan -- \
#                  -C link-arg=-Wl,-z,pack-relative-relocs
#          (57 MiB; the last flag, which saves six of them, asks for glibc 2.36; `cuda` where that builds; built with `wgpu` alone, DEVICE
#          wgpu is by WGSL, for the case that SPIR-V fails);
#          CARRY/vulkan/libvulkan.so.1, the loader out of Debian's libvulkan1 (a file, not the link that the package has by that
#          name), where the machine has none; a python3, with PyTorch or TIEBREAK_TORCH_PYTHON for one that has it, else ours is
#          measured alone.
# Measures with DEVICE by DEVICE: the parity suite; the third shape of docs/PERFORMANCE.md; a model of GPT-2's size (124 M). PyTorch
#          is timed with TF32 off, with it on, and under bf16 autocast.
# Writes   OUT.json: reports, tokens per second, MiB on the device, ratios, of a part that ran out of time what it had. Within eight
#          minutes by its own limits.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,16p' "$0" >&2; exit 2; }
carry=$(cd "$1" && pwd) out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
bench=$carry/bench_step
[ -x "$bench" ] || { echo "error: $bench: not there; build it as the head of $0 says" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
deadline=$((SECONDS + 460))
left() { echo $((deadline - SECONDS)); }
# At most so many seconds, and what is left of the eight minutes; 10 s are to be worth a start.
within() {
    local most=$1 left
    left=$(left)
    shift
    [ "$left" -ge 10 ] || { echo "not begun: no time was left" >&2; return 124; }
    timeout -k 5 $((left < most ? left : most)) "$@"
}

[ ! -e "$carry/vulkan/libvulkan.so.1" ] || export LD_LIBRARY_PATH=$carry/vulkan${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Containers often have NVIDIA's library without the file that tells the loader of it, or with that file out of its sight.
first() { for path in "$@"; do [ ! -e "$path" ] || { echo "$path"; return; }; done; }
if [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}$(first /usr/share/vulkan/icd.d/*nvidia* /etc/vulkan/icd.d/*nvidia*)" ]; then
    manifest=$(first /usr/local/nvidia/share/vulkan/icd.d/*nvidia*)
    library=$(PATH=$PATH:/sbin ldconfig -p | awk '/lib(GLX|EGL)_nvidia\.so\.0/ && !found { print $NF; found = 1 }' || true)
    library=${library:-$(first /usr/local/nvidia/lib64/lib{GLX,EGL}_nvidia.so.0)}
    if [ -z "$manifest" ] && [ -n "$library" ]; then
        manifest=$work/nvidia_icd.json
        printf '{"file_format_version":"1.0.0","ICD":{"library_path":"%s","api_version":"1.3.0"}}' "$library" >"$manifest"
    fi
    [ -z "$manifest" ] || export VK_DRIVER_FILES=$manifest
    [ ! -d /usr/local/nvidia/lib64 ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/nvidia/lib64
fi
[ $# -gt 0 ] || set -- vulkan cuda

# Writes OUT.json from what there is so far, and says whether every device that is there passed.
report() {
    python3 - "$work" "$out" "$@" <<'END'
import json, pathlib, subprocess, sys
work, out, devices = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]


def text(name):
    return (work / name).read_text().strip() if (work / name).exists() else ""


def read(name, said):
    """A program's JSON, else what it said last."""
    try:
        return json.loads(text(name))
    except ValueError:
        lines = text(said).splitlines() or ["it said nothing before its time was over"]
        return {"error": lines[-1], "said": lines[-8:]}


def device(name):
    code = int(text(f"{name}.code"))
    found = {"parity": read(f"{name}.parity", f"{name}.error"), "parity_exit_code": code}
    if code in (124, 137):
        found["parity"]["error"] = "its time was over"
    for shape in ("S3", "gpt2"):
        if (work / f"{name}.{shape}").exists():
            found[shape] = part = read(f"{name}.{shape}", f"{name}.{shape}.error")
            if part.get("failed"):
                part["said"] = text(f"{name}.{shape}.error").splitlines()[-8:]
    return found


try:
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                         check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
except (OSError, subprocess.CalledProcessError):
    gpu = None
begun = [name for name in devices if (work / f"{name}.code").exists()]
found = {name: device(name) for name in begun}
pathlib.Path(out).write_text(json.dumps({"gpu": gpu, "devices": found}, indent=1) + "\n")
there = [name for name in begun if not (work / f"{name}.absent").exists()]
for name in begun:
    parity = found[name]["parity"]
    print(name, "parity:", parity.get("error") or ("passed" if parity["passed"] else "FAILED"))
sys.exit(0 if there and all(found[name]["parity"].get("passed") for name in there) else 1)
END
}

there=()
for device in "$@"; do
    code=0
    # Each of the suite's tiny shapes would be searched for its fastest product.
    CUBECL_AUTOTUNE_LEVEL=minimal within 120 "$bench" --check --device "$device" >"$work/$device.parity" 2>"$work/$device.error" || code=$?
    echo "$code" >"$work/$device.code"
    echo "$device: parity's exit code $code ($SECONDS s)"
    if grep -qE 'is not in this build|does not answer' "$work/$device.error"; then
        cat "$work/$device.error" >&2
        touch "$work/$device.absent"
    else
        there+=("$device")
    fi
    report "$@" >/dev/null || true
done

torch=${TIEBREAK_TORCH_PYTHON:-python3} alone=()
within 30 "$torch" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { torch=python3 alone=(--ours-only); }
remaining=${#there[@]}
for device in "${there[@]}"; do
    share=$(($(left) / remaining))
    for part in S3:60:$((share * 3 / 10)) gpt2:200:$((share * 7 / 10)); do
        IFS=: read -r shape steps most <<<"$part"
        within $((most > 1 ? most : 1)) "$torch" "$here/bench_pytorch.py" --binary "$bench" --torch-python "$torch" --shape "$shape" \
            --device "$device" --precision f32 --pairs 1 --steps "$steps" --warmup 20 --json "${alone[@]}" \
            >"$work/$device.$shape" 2>"$work/$device.$shape.error" || cat "$work/$device.$shape.error" >&2
        echo "$device: $shape ($SECONDS s)"
        report "$@" >/dev/null || true
    done
    remaining=$((remaining - 1))
done
report "$@"
