#!/usr/bin/env bash
# Checks a machine with an NVIDIA GPU that reaches no registry: parity with the CPU, then speed and memory beside its PyTorch.
#
# Run      scripts/gpu_check.sh CARRY OUT.json [DEVICE...]        (default: vulkan and cuda; what the program lacks is passed over)
# Needs    CARRY/bench_step, built elsewhere and carried here (it builds nothing):
#              cargo build --profile dist -p tiebreak-train --example bench_step --features wgpu,vulkan
#          (`cuda` where that builds); CARRY/vulkan/libvulkan.so.1, the loader out of Debian's libvulkan1, where the machine has none;
#          a python3 with PyTorch, or TIEBREAK_TORCH_PYTHON, else speed is measured without it.
# Measures with DEVICE by DEVICE: the parity suite; the third shape of docs/PERFORMANCE.md; a model of GPT-2's size (124 M). PyTorch
#          is timed with TF32 off, with it on, and under bf16 autocast.
# Writes   OUT.json: reports, tokens per second, MiB on the device, ratios. Within eight minutes on an H200 by its own limits.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,14p' "$0" >&2; exit 2; }
carry=$(cd "$1" && pwd) out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
bench=$carry/bench_step
[ -x "$bench" ] || { echo "error: $bench: not there; build it as the head of $0 says" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
deadline=$((SECONDS + 470))
left() { echo $((deadline - SECONDS > 1 ? deadline - SECONDS : 1)); }

if [ -e "$carry/vulkan/libvulkan.so.1" ]; then export LD_LIBRARY_PATH=$carry/vulkan${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
# Containers often have NVIDIA's library without the file that tells the loader of it.
if ! compgen -G "/usr/share/vulkan/icd.d/*nvidia*" >/dev/null && ! compgen -G "/etc/vulkan/icd.d/*nvidia*" >/dev/null; then
    library=$(PATH=$PATH:/sbin ldconfig -p | awk '/libGLX_nvidia\.so\.0/ && !found { print $NF; found = 1 }' || true)
    if [ -n "$library" ]; then
        printf '{"file_format_version":"1.0.0","ICD":{"library_path":"%s","api_version":"1.3.0"}}' "$library" >"$work/nvidia_icd.json"
        export VK_DRIVER_FILES=$work/nvidia_icd.json
    fi
fi

torch=${TIEBREAK_TORCH_PYTHON:-python3}
"$torch" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || torch=
[ $# -gt 0 ] || set -- vulkan cuda
for device in "$@"; do
    echo "== $device ($SECONDS s)"
    code=0
    timeout "$(left)" "$bench" --check --device "$device" >"$work/$device.parity" 2>"$work/$device.error" || code=$?
    # A kind that is not in the program, or that no adapter answers to, is written down and passed over.
    if [ ! -s "$work/$device.parity" ]; then cat "$work/$device.error" >&2; continue; fi
    echo "parity: exit code $code"
    for shape in S3:60 gpt2:200; do
        name=${shape%:*} steps=${shape#*:}
        if [ -n "$torch" ]; then
            timeout "$(left)" "$torch" "$here/bench_pytorch.py" --binary "$bench" --torch-python "$torch" --shape "$name" --device "$device" \
                --precision f32 --pairs 1 --steps "$steps" --warmup 20 --json >"$work/$device.$name" 2>"$work/$device.$name.error" ||
                cat "$work/$device.$name.error" >&2
        else
            case $name in
                S3) flags="--d-model 512 --layers 8 --heads 8 --context 256 --batch 8 --vocab 16384 --block rms" ;;
                *) flags="--d-model 768 --layers 12 --heads 12 --context 1024 --batch 8 --vocab 50257 --block gpt" ;;
            esac
            # shellcheck disable=SC2086
            timeout "$(left)" "$bench" $flags --head tied --device "$device" --steps "$steps" --warmup 20 \
                >"$work/$device.$name" 2>"$work/$device.$name.error" || cat "$work/$device.$name.error" >&2
        fi
    done
done

python3 - "$work" "$out" "$@" <<'END'
import json, pathlib, subprocess, sys
work, out, devices = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]


def read(name):
    """A program's JSON, else what it said last."""
    path, said = work / name, work / f"{name.removesuffix('.parity')}.error"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        lines = said.read_text().strip().splitlines() if said.exists() else []
        return {"error": lines[-1] if lines else "not run: no time was left", "said": lines[-8:]}


try:
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                         check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
except (OSError, subprocess.CalledProcessError):
    gpu = None
report = {"gpu": gpu, "devices": {d: {"parity": read(f"{d}.parity"), "S3": read(f"{d}.S3"), "gpt2": read(f"{d}.gpt2")} for d in devices}}
pathlib.Path(out).write_text(json.dumps(report, indent=1) + "\n")
parities = [found["parity"] for found in report["devices"].values()]
for device, found in report["devices"].items():
    parity = found["parity"]
    print(device, "parity:", parity.get("error") or ("passed" if parity["passed"] else "FAILED"))
ran = [parity for parity in parities if "error" not in parity]
sys.exit(0 if ran and all(parity["passed"] for parity in ran) else 1)
END
