// Memory over time and step time over memory, as SVG.

const kPalette = [
  '#2457a6', '#e08a1e', '#3a9d6e', '#b5488f', '#7a5bc7', '#c4472f', '#4ba3c7', '#9a8c2c', '#6b7785', '#d17fb0', '#57a85b',
  '#8d5a3b', '#3d6f6d', '#b0a0e0', '#d9b13b'];

// The frame of a chart: maps values to pixels and draws the axes.
class Frame {
  constructor([x0, x1], [y0, y1], {left = 56, bottom = 26, right = 14, top = 14} = {}) {
    Object.assign(this, {x0, x1, y0, y1, left, bottom, right, top, width: 1180, height: 330});
  }
  x(v) { return +(this.left + (v - this.x0) / (this.x1 - this.x0) * (this.width - this.left - this.right)).toFixed(1); }
  y(v) { return +(this.height - this.bottom - (v - this.y0) / (this.y1 - this.y0) * (this.height - this.bottom - this.top)).toFixed(1); }
  axes(x_text, y_text) {
    const xs = ticks(this.x0, this.x1, 8), ys = ticks(this.y0, this.y1, 7);
    return ys.map(v => `<line x1="${this.left}" x2="${this.width - this.right}" y1="${this.y(v)}" y2="${this.y(v)}" stroke="#e6ebf0"/>` +
                       `<text x="${this.left - 6}" y="${this.y(v) + 4}" text-anchor="end">${y_text(v, ys)}</text>`).join('') +
           xs.map(v => `<text x="${this.x(v)}" y="${this.height - this.bottom + 17}" text-anchor="middle">${x_text(v, xs)}</text>`).join('');
  }
  svg(body) { return `<svg viewBox="0 0 ${this.width} ${this.height}">${body}</svg>`; }
}

// Points [time, allocated, reserved, [bytes by category]]; each holds until the next.
function draw_memory(place) {
  const {points, categories, peak_at} = DATA.memory, peak = points[DATA.memory.peak], start = points[0][0];
  const highest = Math.max(...points.map(p => Math.max(p[1], p[2])));
  const frame = new Frame([0, points[points.length - 1][0] - start || 1e-9], [0, highest / 2 ** 30 * 1.08], {top: 22});
  const x = p => frame.x(p[0] - start), y = bytes => frame.y(bytes / 2 ** 30);
  const steps = (values, first) => values.map((v, i) => (i ? `H${x(points[i])}V` : `${first}${x(points[0])},`) + y(v)).join('');
  const back = values => values.map((v, i) => `V${y(v)}H${x(points[i])}`).reverse().join('');

  let below = points.map(() => 0), body = frame.axes(tick_time, v => v);
  categories.forEach((name, k) => {
    const above = points.map((p, i) => below[i] + p[3][k]);
    body += `<path d="${steps(above, 'M')}${back(below)}Z" fill="${kPalette[k % kPalette.length]}" fill-opacity=".88"><title>${escape_html(name)}</title></path>`;
    below = above;
  });
  body += `<path fill="none" stroke="#1c2733" stroke-width="1.3" d="${steps(points.map(p => p[2]), 'M')}"/>`;
  const to_left = x(peak) > frame.width * 0.7;
  body += `<line x1="${x(peak)}" x2="${x(peak)}" y1="14" y2="${frame.y(0)}" stroke="#b3261e" stroke-dasharray="4 3"/>` +
          `<circle cx="${x(peak)}" cy="${y(peak[1])}" r="3.5" fill="#b3261e"/>` +
          `<text x="${x(peak) + (to_left ? -6 : 6)}" y="14" style="fill:#b3261e" text-anchor="${to_left ? 'end' : 'start'}">` +
          `peak ${gib(peak[1])} GiB allocated: ${escape_html(peak_at)}</text>`;
  const seen = k => points.some(p => p[3][k] > 0.01 * highest);
  const key = categories.map((name, k) => seen(k) ? swatch(kPalette[k % kPalette.length], `${name} ${gib(peak[3][k])} GiB at the peak`) : '');
  place.innerHTML = frame.svg(body) + `<div class="key">${key.join('')}${swatch('#1c2733', 'reserved by the allocator', 'stroke')}</div>` +
    '<p class="hint">GiB along the host thread, which claims and returns memory ahead of the device.</p>';
}

function draw_wrap(place) {
  const all = DATA.wrap, gibs = p => p.memory / 2 ** 30, capacity = memory.device_capacity_bytes / 2 ** 30;
  const range = (values, low, high) => [Math.min(...values) * low, Math.max(...values) * high];
  const frame = new Frame(range(all.map(gibs), 0.97, 1.04), range(all.map(p => p.step), 0.98, 1.03), {bottom: 42});
  let body = frame.axes(v => v, tick_time);
  body += `<text x="${frame.width / 2}" y="${frame.height - 6}" text-anchor="middle">device memory (GiB)</text>`;
  if (capacity < frame.x1) {
    const x = Math.max(frame.x(capacity), frame.left);
    body += `<rect x="${x}" y="10" width="${frame.width - frame.right - x}" height="${frame.height - frame.bottom - 10}" fill="#b3261e" fill-opacity=".06"/>` +
            `<text x="${frame.width - frame.right - 4}" y="24" text-anchor="end" style="fill:#b3261e">does not fit</text>`;
  }
  const front = all.filter(p => p.pareto).sort((p, q) => p.memory - q.memory);
  body += `<path fill="none" stroke="#2457a6" stroke-width="1.5" d="${front.map((p, i) => `${i ? 'L' : 'M'}${frame.x(gibs(p))},${frame.y(p.step)}`).join('')}"/>`;
  for (const p of all) {
    const colour = p.chosen ? '#1d7f4e' : p.pareto ? '#2457a6' : p.fits ? '#9aa7b4' : '#d9a19d';
    body += `<circle cx="${frame.x(gibs(p))}" cy="${frame.y(p.step)}" r="${p.chosen ? 8 : 5}" fill="${colour}">` +
            `<title>${escape_html(p.label)}: ${duration(p.step)}, ${gib(p.memory)} GiB. ${escape_html(p.verdict)}</title></circle>`;
  }
  const chosen = all.find(p => p.chosen);
  if (chosen)
    body += `<text x="${frame.x(gibs(chosen))}" y="${frame.y(chosen.step) + 22}" style="fill:#1d7f4e;paint-order:stroke;stroke:#fff;stroke-width:4px" text-anchor="middle" font-weight="600">${escape_html(chosen.label)}</text>`;
  place.innerHTML = frame.svg(body) +
    `<div class="key">${swatch('#1d7f4e', 'choose this')}${swatch('#2457a6', 'front of time and memory')}${swatch('#9aa7b4', 'loses')}</div>`;
  document.getElementById('wraptable').innerHTML = table([['blocks in a unit'], ['step', 'n'], ['GiB', 'n'], ['verdict']],
    all.map(p => [escape_html(p.label), duration(p.step), gib(p.memory), escape_html(p.verdict)]));
}

for (const [id, draw] of [['memory', draw_memory], ['wrap', draw_wrap]])
  if (document.getElementById(id)) draw(document.getElementById(id));
