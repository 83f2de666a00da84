#!/usr/bin/env bash
# run.sh BUILD SECONDS: runs each fuzz target of BUILD/fuzzers for SECONDS, from seeds of this repository; stops at the first
# that fails. Mutations start from real files of each kind, else random bytes would seldom pass the first brace.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(realpath "$1")
seconds=$2
seeds="$build/seeds"
mkdir -p "$seeds"/{model,schedule,trace,runs,options,nccl_log,collective_csv,topology,topology_xml,deepspeed,accelerate,torchtitan}

cat > "$seeds/model/tiny.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
 "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "tie_word_embeddings": false}
JSON
tiny=("$seeds/model/tiny.json" --seq 8 --gpus 2 --clip no --optimizer sgd)
"$build/foreshard" plan "${tiny[@]}" -o "$seeds/schedule/plan.json" > /dev/null
"$build/foreshard" simulate "${tiny[@]}" --on dgx-h100 --suggest no --trace "$seeds/trace/trace.json" > /dev/null
printf 'model: llama3-8b\ngpus: 8\non: dgx-h100\nseq: 4096\n' > "$seeds/options/job.yaml"
printf '{"train_batch_size": 64, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "reduce_bucket_size": "auto"},\n "optimizer": {"type": "AdamW", "params": {"torch_adam": true}}, "gradient_clipping": "auto", "flops_profiler": {"enabled": false}}\n' \
  > "$seeds/deepspeed/ds.json"
printf 'distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n' \
  > "$seeds/accelerate/fsdp.yaml"
printf 'distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  offload_param_device: cpu\n  gradient_clipping: 1.0\n' > "$seeds/accelerate/deepspeed.yaml"
printf '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n[training]\nseq_len = 8192\nmax_norm = 1.0\n[parallelism]\ndata_parallel_shard_degree = -1\n[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"\n' \
  > "$seeds/torchtitan/job.toml"
printf 'source_id,row_id,model,params_b,n_layers,d_model,n_heads,gpu,n_gpus,strategy,tokens_per_s_per_gpu,notes\nlab,lab-1,"a ""b""",1.3,24,2048,16,A100,8,fsdp,11000,\n' \
  > "$seeds/runs/runs.csv"
printf '# nThread 1 nGpus 8 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20\n#       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n        8      2  float  sum  -1  20.0  0.00  0.00  0  20.0  0.00  0.00  0\n' \
  > "$seeds/nccl_log/new.log"
printf 'size_bytes,time_us_out_of_place,time_us_in_place\n1024,20.5,20.1\n' > "$seeds/collective_csv/table.csv"
printf '\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\tPIX\t0-47\t0\nGPU1\tNV18\t X \tSYS\t48-95\t1\nNIC0\tPIX\tSYS\t X \n' \
  > "$seeds/topology/topo.txt"
printf '<system version="1"><cpu numaid="0" arch="x86_64"><pci busid="0000:07:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="90" rank="0"><nvlink target="0000:08:00.0" count="18" tclass="0x068000"/></gpu></pci></cpu></system>\n' \
  > "$seeds/topology_xml/topo.xml"

# seeds_of TARGET: folders of files to start from.
seeds_of() {
  case "$1" in
    json) echo "$seeds/model" "$root/tests/conformance/data/models" ;;
    yaml | series) echo "$root/studies/communication_bound" "$root/studies/relative_claims" ;;
    profile) echo "$root"/hwprofiles/catalogue/* ;;
    model) echo "$seeds/model" "$root/studies/communication_bound/models" ;;
    *) echo "$seeds/$1" ;;
  esac
}

for program in "$build"/fuzzers/fuzz_*; do
  name=$(basename "$program")
  corpus="$build/corpus/$name"
  mkdir -p "$corpus"
  echo "== $name for $seconds s"
  # shellcheck disable=SC2046
  "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -max_len=262144 -print_final_stats=0 \
    -artifact_prefix="$build/$name-" "$corpus" $(seeds_of "${name#fuzz_}") > "$build/$name.log" 2>&1 ||
    { tail -40 "$build/$name.log"; exit 1; }
  grep -E '^(#[0-9]+\s+DONE|Done)' "$build/$name.log" || tail -2 "$build/$name.log"
done
echo "all fuzz targets clean"
