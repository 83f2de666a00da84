#!/usr/bin/env bash
# The demo: predicts Llama-3.1-8B on 8 H100, plans and runs a small Llama on 4 CPU ranks and compares, studies wrapping.
# Usage: demo.sh PROGRAM FOLDER
set -euo pipefail
program=$(realpath "$1")
mkdir -p "$2"
cd "$2"
title() { printf '\n\033[0m== %s\n   $ %s\n\n' "$1" "$2"; }

title "(a) Llama-3.1-8B on 8 H100: will it fit, and how fast is it?" \
  "foreshard simulate llama3.1-8b --gpus 8 --on dgx-h100 --seq 4096 --html llama3.1-8b.html --trace llama3.1-8b.trace.json"
"$program" simulate llama3.1-8b --gpus 8 --on dgx-h100 --seq 4096 \
  --html llama3.1-8b.html --trace llama3.1-8b.trace.json

cat > small-llama.json <<'JSON'
{
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
  "intermediate_size": 172, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false
}
JSON
small=(small-llama.json --seq 32 --param-dtype fp32)
title "(b) A small Llama: planned, run on 4 CPU ranks with emulated links, compared" \
  "foreshard plan small-llama.json --gpus 4 -o plan.json; foreshard run plan.json --emulate-links yes ...; foreshard compare ..."
"$program" plan "${small[@]}" --gpus 4 -o plan.json
"$program" simulate "${small[@]}" --gpus 4 --on dgx-h100 --suggest no --steps 6 --trace predicted.json > predicted.txt
"$program" run plan.json --steps 6 --emulate-links yes --on dgx-h100 --trace measured.json
echo
"$program" compare predicted.json measured.json
"$program" compare predicted.json measured.json --json > compare.json

title "(c) How should Llama-3.1-8B be wrapped on two nodes of A100?" \
  "foreshard tune llama3.1-8b --gpus 16 --on 2x-a100-80-200g --seq 4096"
"$program" tune llama3.1-8b --gpus 16 --on 2x-a100-80-200g --seq 4096
"$program" tune llama3.1-8b --gpus 16 --on 2x-a100-80-200g --seq 4096 --json > wrap.json

echo
echo "== Written to $PWD"
echo "   llama3.1-8b.html        open in a browser"
echo "   llama3.1-8b.trace.json  open in https://ui.perfetto.dev"
echo "   plan.json predicted.json measured.json compare.json wrap.json"
