// Numbers, units and tables as text.

const escape_html = s => String(s).replace(/[&<>"]/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'}[c]));
const gib = bytes => (bytes / 2 ** 30).toFixed(1);
const gib_up = bytes => (Math.ceil(bytes / 2 ** 30 * 10) / 10).toFixed(1);  // What is needed is not rounded down.
const signed_gib = bytes => gib(bytes).replace('-0.0', '0.0').replace(/^(?=[1-9]|0\.[1-9])/, '+') + ' GiB';
const percent = share => (100 * share).toFixed(1) + ' %';

function duration(seconds) {
  if (seconds === 0) return '0';
  for (const [unit, size] of [['s', 1], ['ms', 1e-3], ['us', 1e-6]])
    if (Math.abs(seconds) >= size) return (seconds / size).toPrecision(3) + ' ' + unit;
  return (seconds * 1e9).toPrecision(3) + ' ns';
}

function bytes_text(bytes) {
  for (const [unit, size] of [['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['kB', 1e3]])
    if (bytes >= size) return (bytes / size).toPrecision(3) + ' ' + unit;
  return bytes + ' B';
}

// Round numbers from `low` to `high`, about `count` of them.
function ticks(low, high, count) {
  const wanted = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= wanted * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) out.push(k * step);
  return out;
}

// A time at a tick: no more digits than the distance between ticks asks for.
function tick_time(seconds, all) {
  if (seconds === 0) return '0';
  const largest = Math.max(...all.map(Math.abs));
  const [unit, size] = [['s', 1], ['ms', 1e-3], ['us', 1e-6], ['ns', 1e-9]].find(u => largest >= u[1]) || ['ns', 1e-9];
  return parseFloat((seconds / size).toPrecision(5)) + ' ' + unit;
}

const section = (title, body, tools = '') => `<section>${tools}<h2>${title}</h2>${body}</section>`;

// heads: [text, class]; class "n" for numbers.
function table(heads, rows) {
  const head = heads.map(([text, kind = '']) => `<th class="${kind}">${text}</th>`).join('');
  const cells = row => row.map((cell, i) => `<td class="${heads[i][1] || ''}">${cell}</td>`).join('');
  return `<table><tr>${head}</tr>${rows.map(row => `<tr>${cells(row)}</tr>`).join('')}</table>`;
}

const swatch = (colour, text, kind = '') => `<span><i class="${kind}" style="background:${colour}"></i>${escape_html(text)}</span>`;
