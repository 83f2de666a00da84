#include "report/html_page.h"

namespace foreshard {

const std::string_view kHtmlBefore = R"PAGE(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Foreshard report</title>
<style>
:root { --ink:#1c2733; --soft:#5d6b7a; --line:#dfe5eb; --page:#f5f7f9; --card:#fff; --good:#1d7f4e; --bad:#b3261e; --accent:#2457a6; }
* { box-sizing:border-box } body { margin:0; background:var(--page); color:var(--ink); font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif }
main { max-width:1240px; margin:0 auto; padding:28px 24px 60px } h1 { font-size:25px; margin:0 0 2px } h2 { font-size:17px; margin:0 0 10px }
.sub { color:var(--soft); margin:0 0 18px } section { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:18px 20px; margin:0 0 18px }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(170px,1fr)); gap:12px } .tile { border:1px solid var(--line); border-radius:8px; padding:12px 14px }
.tile b { display:block; font-size:23px; font-weight:650; font-variant-numeric:tabular-nums } .tile span { color:var(--soft); font-size:13px }
.good b { color:var(--good) } .bad b { color:var(--bad) } .bar { display:flex; height:26px; border-radius:6px; overflow:hidden; margin:4px 0 8px } .bar div { min-width:1px }
.key { display:flex; flex-wrap:wrap; gap:4px 18px; font-size:13px; color:var(--soft) } .key i { display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:6px; vertical-align:-1px }
table { border-collapse:collapse; width:100%; font-size:13.5px; font-variant-numeric:tabular-nums } th { text-align:left; color:var(--soft); font-weight:500; border-bottom:1px solid var(--line); padding:5px 10px 5px 0 }
td { border-bottom:1px solid #eef1f4; padding:5px 10px 5px 0; vertical-align:top } td.n, th.n { text-align:right } canvas { width:100%; display:block } svg { width:100%; height:auto; display:block }
.hint { color:var(--soft); font-size:13px; margin:6px 0 0 } #tip { position:fixed; pointer-events:none; background:#1c2733; color:#fff; font-size:12.5px; padding:5px 9px; border-radius:5px; display:none; max-width:420px; z-index:9 }
button { font:inherit; font-size:13px; border:1px solid var(--line); background:#fff; border-radius:6px; padding:3px 11px; cursor:pointer } .tools { float:right; display:flex; gap:6px }
details summary { cursor:pointer; color:var(--accent) } .two { display:grid; grid-template-columns:1fr 1fr; gap:22px } @media (max-width:900px) { .two { grid-template-columns:1fr } }
@media print { body { background:#fff } section { break-inside:avoid; border-color:#ccc } .tools, .hint.screen { display:none } main { max-width:none; padding:0 } details { display:block } }
</style></head><body><main id="page"></main><div id="tip"></div>
<script>
const DATA = )PAGE";

const std::string_view kHtmlAfter = R"PAGE(;
const A = DATA.answer, page = document.getElementById('page'), tip = document.getElementById('tip');
const esc = s => String(s).replace(/[&<>"]/g, c => ({'&':'&amp;','<':'&lt;','>':'&gt;','"':'&quot;'}[c]));
const gib = b => (b / 2**30).toFixed(1);
function dur(s) { const a = Math.abs(s); if (a >= 1) return s.toPrecision(3) + ' s'; if (a >= 1e-3) return (s*1e3).toPrecision(3) + ' ms'; if (a >= 1e-6) return (s*1e6).toPrecision(3) + ' us'; return (s*1e9).toPrecision(3) + ' ns'; }
function bytes(b) { for (const [u, n] of [[1e12,'TB'],[1e9,'GB'],[1e6,'MB'],[1e3,'kB']]) if (b >= u) return (b/u).toPrecision(3) + ' ' + n; return b + ' B'; }
const PAL = ['#2457a6','#e08a1e','#3a9d6e','#b5488f','#7a5bc7','#c4472f','#4ba3c7','#9a8c2c','#6b7785','#d17fb0','#57a85b','#8d5a3b','#3d6f6d','#b0a0e0','#d9b13b'];
const section = (title, body, tools = '') => `<section>${tools}<h2>${title}</h2>${body}</section>`;
const table = (heads, rows) => `<table><tr>${heads.map(h => `<th class="${h[1] || ''}">${h[0]}</th>`).join('')}</tr>${rows.map(r => `<tr>${r.map((c, i) => `<td class="${heads[i][1] || ''}">${c}</td>`).join('')}</tr>`).join('')}</table>`;
const m = A.memory, parts = [['compute', A.breakdown.compute_s, '#3a9d6e'], ['exposed communication', A.breakdown.exposed_communication_s, '#e08a1e'], ['waiting for the host', A.breakdown.exposed_host_s, '#b5488f'], ['optimizer', A.breakdown.optimizer_s, '#2457a6'], ['idle', A.breakdown.idle_s, '#c7ced6']];
const tile = (v, t, c = '') => `<div class="tile ${c}"><b>${v}</b><span>${t}</span></div>`;
let html = `<h1>${esc(A.model)} on ${esc(A.machines)}</h1><p class="sub">${[DATA.model_size, A.framework, DATA.precision, DATA.wrapping].filter(Boolean).map(esc).join(' · ')}</p>`;
html += section('Verdict', `<div class="tiles">${tile(m.fits ? 'Fits' : 'Does not fit', `${gib(m.device_peak_bytes)} of ${gib(m.device_capacity_bytes)} GiB`, m.fits ? 'good' : 'bad')}${tile(dur(A.step_time_s), 'a step')}${A.tokens_per_s_per_gpu ? tile(Math.round(A.tokens_per_s_per_gpu).toLocaleString('en'), 'tokens per second and GPU') : ''}${A.mfu ? tile((100*A.mfu).toFixed(1) + ' %', 'model FLOPs utilisation') : ''}</div>
<div class="bar" style="margin-top:16px">${parts.map(p => `<div style="width:${100*p[1]/A.step_time_s}%;background:${p[2]}" title="${p[0]} ${dur(p[1])}"></div>`).join('')}</div><div class="key">${parts.map(p => `<span><i style="background:${p[2]}"></i>${p[0]} ${dur(p[1])}</span>`).join('')}</div>
${m.out_of_memory ? `<p>${esc(m.out_of_memory)}</p>` : ''}${A.not_modelled.length ? `<p class="hint">Not modelled: ${A.not_modelled.map(esc).join('; ')}</p>` : ''}`);
if (DATA.spans.length) html += section('Streams over time', '<canvas id="streams" height="10"></canvas><p class="hint screen">Wheel zooms, drag moves, double-click shows all. Point at a bar for its name.</p>', '<div class="tools"><button id="zin">zoom in</button><button id="zout">zoom out</button><button id="zall">whole step</button></div>');
if (DATA.memory.points.length) html += section('Memory over time by category', '<div id="memory"></div>');
if (A.suggestions.length) html += section('Try', table([['change'],['step','n'],['memory','n'],['tokens/s/GPU','n'],['']], A.suggestions.map(s => [esc(s.change), dur(s.step_time_s), (s.memory_change_bytes >= 0 ? '+' : '') + gib(s.memory_change_bytes) + ' GiB', Math.round(s.tokens_per_s_per_gpu), s.fits ? 'fits' : 'does not fit'])));
if (DATA.wrap.length) html += section('Wrap curve: step time over memory', '<div id="wrap"></div><details><summary>All wrappings</summary><div id="wraptable"></div></details>');
html += section('Why', `<div class="two"><div>${table([['collective'],['ranks','n'],['count','n'],['bytes','n'],['busy','n'],['exposed','n'],['limited by']], A.communication.map(c => [esc(c.kind), c.group_size, c.count, bytes(c.bytes), dur(c.busy_s), dur(c.exposed_s), esc(c.limited_by)]))}</div><div>${table([['critical path'],['time','n'],['share','n']], A.critical_path.slice(0, 12).map(c => [esc(c.resource), dur(c.s), (100*c.s/A.step_time_s).toFixed(1) + ' %']))}</div></div>`);
if (m.owners.length) html += section(`Live at the memory peak (${esc(m.peak_at)})`, table([['category'],['unit'],['bytes','n']], m.owners.slice(0, 15).map(o => [esc(o.category), esc(o.unit), gib(o.bytes) + ' GiB'])));
if (A.uncertainty.length) html += section('Where the range of the step comes from', table([['quantity'],['one deviation','n'],['step','n'],['source']], A.uncertainty.map(u => [esc(u.quantity), (100*u.sd).toFixed(1) + ' %', (100*u.effect).toFixed(1) + ' %', esc(u.source)])) + (A.outside_calibration.length ? `<p class="hint">Outside what was calibrated: ${A.outside_calibration.map(esc).join('; ')}</p>` : ''));
html += section('Assumptions and their sources', table([['quantity'],['value','n'],['kind'],['source']], A.provenance.map(p => [esc(p.quantity), esc(p.value), esc(p.kind), esc(p.source)])));
page.innerHTML = html;
const show = (e, t) => { tip.style.display = 'block'; tip.textContent = t; tip.style.left = Math.min(e.clientX + 14, innerWidth - 430) + 'px'; tip.style.top = (e.clientY + 14) + 'px'; }, hide = () => tip.style.display = 'none';

function drawStreams() {
  const cv = document.getElementById('streams'); if (!cv) return;
  const rowH = 40, top = 24, left = 136, rows = DATA.streams, S = DATA.spans, T0 = DATA.begin, T1 = DATA.end; let a = T0, b = T1;
  const colour = k => k === 1 ? '#e08a1e' : k === 2 ? '#7a5bc7' : k === 3 ? '#b9c2cc' : '#3a9d6e';
  cv.height = 1; const h = top + rows.length * rowH + 8;
  function paint() {
    const w = cv.clientWidth, r = devicePixelRatio || 1; cv.width = w*r; cv.height = h*r; cv.style.height = h + 'px';
    const g = cv.getContext('2d'); g.scale(r, r); g.clearRect(0, 0, w, h); g.font = '12px system-ui,sans-serif'; const x = t => left + (t - a) / (b - a) * (w - left - 6);
    const raw = (b - a) / 8, mag = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map(k => k*mag).find(k => k >= raw);
    g.fillStyle = '#5d6b7a'; for (let t = Math.ceil((a - T0)/step)*step; t <= b - T0; t += step) { const p = x(t + T0); g.fillRect(p, top - 4, 1, h - top); g.globalAlpha = 1; g.fillText(dur(t), p + 3, 12); }
    g.fillStyle = 'rgba(255,255,255,.82)'; g.fillRect(left, top - 3, w, h);
    rows.forEach((n, i) => { const y = top + i*rowH; g.fillStyle = i % 2 ? '#fff' : '#f3f6f8'; g.fillRect(0, y, w, rowH); g.fillStyle = '#1c2733'; g.fillText(n, 6, y + rowH/2 + 4); });
    let lastX = rows.map(() => -1);
    for (const s of S) { if (s[2] < a || s[1] > b) continue; const x0 = Math.max(left, x(s[1])), x1 = Math.max(x0 + .6, Math.min(w, x(s[2]))); if (x1 - lastX[s[0]] < .5) continue; lastX[s[0]] = x1;
      const y = top + s[0]*rowH + 5; g.fillStyle = colour(s[3]); g.fillRect(x0, y, x1 - x0, rowH - 10);
      if (x1 - x0 > 60) { g.save(); g.beginPath(); g.rect(x0, y, x1 - x0 - 3, rowH); g.clip(); g.fillStyle = '#fff'; g.fillText(DATA.titles[s[4]], x0 + 4, y + rowH/2); g.restore(); } }
  }
  const zoom = (f, c) => { const n = Math.min(T1 - T0, (b - a)*f), k = (c - a)/(b - a); a = Math.max(T0, Math.min(T1 - n, c - k*n)); b = a + n; paint(); };
  const at = e => a + (e.offsetX - left) / (cv.clientWidth - left - 6) * (b - a); let drag = null;
  cv.onwheel = e => { e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : .8, at(e)); }; cv.ondblclick = () => { a = T0; b = T1; paint(); };
  cv.onmousedown = e => drag = [e.offsetX, a]; onmouseup = () => drag = null; cv.onmouseleave = hide;
  cv.onmousemove = e => { if (drag) { const n = b - a; a = Math.max(T0, Math.min(T1 - n, drag[1] - (e.offsetX - drag[0]) / (cv.clientWidth - left)*n)); b = a + n; paint(); return; }
    const row = Math.floor((e.offsetY - top)/rowH), t = at(e), s = S.find(s => s[0] === row && s[1] <= t && t <= s[2]); s ? show(e, `${DATA.titles[s[4]]}: ${dur(s[2] - s[1])} from ${dur(s[1] - T0)}`) : hide(); };
  document.getElementById('zin').onclick = () => zoom(.5, (a+b)/2); document.getElementById('zout').onclick = () => zoom(2, (a+b)/2); document.getElementById('zall').onclick = cv.ondblclick;
  onresize = paint; paint();
}
function drawMemory() {
  const at = document.getElementById('memory'); if (!at) return;
  const M = DATA.memory, W = 1180, H = 330, L = 52, B = 26, R = 12, P = M.points, cap = m.device_capacity_bytes, peak = P[M.peak];
  const t0 = P[0][0], t1 = P[P.length - 1][0] || 1, top = Math.max(...P.map(p => p[2]), ...P.map(p => p[1])) * 1.1, x = t => L + (t - t0)/(t1 - t0)*(W - L - R), y = v => H - B - v/top*(H - B - 14);
  let s = `<svg viewBox="0 0 ${W} ${H}" font-size="12" font-family="system-ui,sans-serif">`;
  for (let i = 0; i <= 5; i++) { const v = top*i/5; s += `<line x1="${L}" x2="${W-R}" y1="${y(v)}" y2="${y(v)}" stroke="#e6ebf0"/><text x="${L-6}" y="${y(v)+4}" text-anchor="end" fill="#5d6b7a">${gib(v)}</text>`; }
  let base = P.map(() => 0);
  M.categories.forEach((c, k) => { let up = '', down = ''; const next = P.map((p, i) => base[i] + p[3][k]);
    P.forEach((p, i) => { const px = x(p[0]).toFixed(1); if (i) up += `H${px}`; up += `${i ? '' : 'M' + px + ','}${i ? 'V' : ''}${y(next[i]).toFixed(1)}`; });
    for (let i = P.length - 1; i >= 0; i--) { down += `V${y(base[i]).toFixed(1)}H${x(P[i][0]).toFixed(1)}`; }
    s += `<path d="${up}${down}Z" fill="${PAL[k % PAL.length]}" fill-opacity=".88"><title>${esc(c)}</title></path>`; base = next; });
  s += `<path fill="none" stroke="#1c2733" stroke-width="1.3" d="${P.map((p, i) => (i ? 'L' : 'M') + x(p[0]).toFixed(1) + ',' + y(p[2]).toFixed(1)).join('')}"/>`;
  const px = x(peak[0]), right = px > W*.7; s += `<line x1="${px}" x2="${px}" y1="14" y2="${H-B}" stroke="#b3261e" stroke-dasharray="4 3"/><text x="${px + (right ? -6 : 6)}" y="24" fill="#b3261e" text-anchor="${right ? 'end' : 'start'}">peak ${gib(peak[1])} GiB allocated: ${esc(M.peak_at)}</text>`;
  for (let i = 0; i <= 6; i++) { const t = t0 + (t1 - t0)*i/6; s += `<text x="${x(t)}" y="${H-8}" text-anchor="${i === 6 ? 'end' : 'middle'}" fill="#5d6b7a">${dur(t - t0)}</text>`; }
  at.innerHTML = s + '</svg><div class="key">' + M.categories.map((c, k) => Math.max(...P.map(p => p[3][k])) < 0.01*top ? '' : `<span><i style="background:${PAL[k % PAL.length]}"></i>${esc(c)} ${gib(peak[3][k])} GiB at the peak</span>`).join('') + '<span><i style="background:#1c2733;height:3px;vertical-align:3px"></i>reserved by the allocator (GiB)</span></div><p class="hint">Along the host thread, which claims and returns memory ahead of the device.</p>';
}
function drawWrap() {
  const at = document.getElementById('wrap'); if (!at) return;
  const V = DATA.wrap, W = 1180, H = 330, L = 60, B = 40, R = 20, xs = V.map(p => p.memory / 2**30), ys = V.map(p => p.step), cap = m.device_capacity_bytes / 2**30;
  const x0 = Math.min(...xs)*.97, x1 = Math.max(...xs)*1.04, y0 = Math.min(...ys)*.98, y1 = Math.max(...ys)*1.03, x = v => L + (v - x0)/(x1 - x0)*(W - L - R), y = v => H - B - (v - y0)/(y1 - y0)*(H - B - 14);
  let s = `<svg viewBox="0 0 ${W} ${H}" font-size="12" font-family="system-ui,sans-serif">`;
  for (let i = 0; i <= 5; i++) { const v = y0 + (y1 - y0)*i/5, u = x0 + (x1 - x0)*i/5; s += `<line x1="${L}" x2="${W-R}" y1="${y(v)}" y2="${y(v)}" stroke="#e6ebf0"/><text x="${L-6}" y="${y(v)+4}" text-anchor="end" fill="#5d6b7a">${dur(v)}</text><text x="${x(u)}" y="${H-B+16}" text-anchor="middle" fill="#5d6b7a">${u.toFixed(1)}</text>`; }
  s += `<text x="${W/2}" y="${H-4}" text-anchor="middle" fill="#5d6b7a">device memory (GiB)</text>`;
  if (cap < x1) s += `<rect x="${x(cap)}" y="10" width="${W - R - x(cap)}" height="${H-B-10}" fill="#b3261e" fill-opacity=".06"/><text x="${W - R - 4}" y="24" text-anchor="end" fill="#b3261e">does not fit</text>`;
  const front = V.filter(p => p.pareto).sort((p, q) => p.memory - q.memory); s += `<path fill="none" stroke="#2457a6" stroke-width="1.5" d="${front.map((p, i) => (i ? 'L' : 'M') + x(p.memory/2**30) + ',' + y(p.step)).join('')}"/>`;
  V.forEach(p => { const c = p.chosen ? '#1d7f4e' : p.pareto ? '#2457a6' : p.fits ? '#9aa7b4' : '#d9a19d'; s += `<circle cx="${x(p.memory/2**30)}" cy="${y(p.step)}" r="${p.chosen ? 8 : 5}" fill="${c}"><title>${esc(p.label)}: ${dur(p.step)}, ${gib(p.memory)} GiB. ${esc(p.verdict)}</title></circle>`; });
  const c = V.find(p => p.chosen); if (c) s += `<text x="${x(c.memory/2**30)}" y="${y(c.step) - 13}" fill="#1d7f4e" text-anchor="middle" font-weight="600">${esc(c.label)}</text>`;
  at.innerHTML = s + '</svg><div class="key"><span><i style="background:#1d7f4e"></i>choose this</span><span><i style="background:#2457a6"></i>front of time and memory</span><span><i style="background:#9aa7b4"></i>loses</span></div>';
  document.getElementById('wraptable').innerHTML = table([['blocks in a unit'],['step','n'],['GiB','n'],['verdict']], V.map(p => [esc(p.label), dur(p.step), gib(p.memory), esc(p.verdict)]));
}
drawStreams(); drawMemory(); drawWrap();
</script></body></html>
)PAGE";

}  // namespace foreshard
