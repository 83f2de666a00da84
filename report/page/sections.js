// The page from top to bottom; charts are drawn into it afterwards.

const answer = DATA.answer, memory = answer.memory;

// As the terminal says it.
function fit() {
  if (memory.borderline) return 'Fits, borderline';
  if (memory.tight) return 'Fits, tight';
  if (memory.fits) return 'Fits';
  return memory.fits_device ? "Does not fit the host's memory" : 'Does not fit';
}

function device_memory() {
  if (memory.runs_with_bytes === undefined) return `${gib(memory.device_peak_bytes)} of ${gib(memory.device_capacity_bytes)} GiB`;
  return `has ${gib(memory.device_capacity_bytes)} GiB, runs with ${gib_up(memory.runs_with_bytes)} GiB`;
}

function verdict() {
  const tile = (value, what, kind = '') => `<div class="tile ${kind}"><b>${value}</b><span>${what}</span></div>`;
  const tiles = [
    tile(fit(), device_memory(),
         memory.fits && !memory.borderline && !memory.tight ? 'good' : 'bad'),
    tile(duration(answer.step_time_s), answer.step_time_p10_s ?
         `a step (${duration(answer.step_time_p10_s)} to ${duration(answer.step_time_p90_s)})` : 'a step'),
    answer.tokens_per_s_per_gpu ? tile(Math.round(answer.tokens_per_s_per_gpu).toLocaleString('en'), 'tokens per second and GPU')
      : tile(Number(answer.samples_per_s_per_gpu.toPrecision(4)).toLocaleString('en'), 'samples per second and GPU'),
    answer.mfu ? tile(percent(answer.mfu), `model FLOPs utilisation (hardware: ${percent(answer.hfu)})`) : ''];
  const breakdown = answer.breakdown;
  const parts = [
    ['compute', breakdown.compute_s, '#3a9d6e'], ['exposed communication', breakdown.exposed_communication_s, '#e08a1e'],
    ['waiting for the host', breakdown.exposed_host_s, '#b5488f'], ['optimizer', breakdown.optimizer_s, '#2457a6'],
    ['idle', breakdown.idle_s, '#c7ced6']].filter(p => p[1] > 0);
  const bar = parts.map(([name, s, colour]) =>
    `<div style="width:${100 * s / answer.step_time_s}%;background:${colour}" title="${name} ${duration(s)}"></div>`).join('');
  const key = parts.map(([name, s, colour]) => swatch(colour, `${name} ${duration(s)}`)).join('');
  const oom = memory.out_of_memory ? `<p>${escape_html(memory.out_of_memory)}</p>` : '';
  const remarks = answer.remarks.map(r => `<p class="hint">Note: ${escape_html(r)}</p>`).join('');
  const missing = answer.not_modelled.length ? `<p class="hint">Not modelled: ${answer.not_modelled.map(escape_html).join('; ')}</p>` : '';
  return section('Verdict', `<div class="tiles">${tiles.join('')}</div><div class="bar">${bar}</div><div class="key">${key}</div>${oom}${remarks}${missing}`);
}

function streams_section() {
  if (!DATA.spans.length) return '';
  const tools = '<div class="tools"><button id="zoom-in">zoom in</button><button id="zoom-out">zoom out</button><button id="zoom-all">whole step</button></div>';
  return section('Streams over time',
    '<canvas id="streams" height="10"></canvas><p class="hint screen">Wheel zooms, drag moves, double-click shows all. Point at a bar for its name.</p>', tools);
}

function suggestions() {
  if (!answer.suggestions.length) return '';
  const tokens = answer.suggestions.some(s => s.tokens_per_s_per_gpu > 0);
  return section('Try', table(
    [['change'], ['step', 'n'], ['memory', 'n'], [tokens ? 'tokens/s/GPU' : 'samples/s/GPU', 'n'], ['']],
    answer.suggestions.map(s => [
      escape_html(s.change), duration(s.step_time_s), signed_gib(s.memory_change_bytes),
      tokens ? Math.round(s.tokens_per_s_per_gpu) : Number(s.samples_per_s_per_gpu.toPrecision(4)),
      s.fits ? 'fits' : 'does not fit'])));
}

function why() {
  const collectives = table(
    [['collective'], ['group'], ['ranks', 'n'], ['count', 'n'], ['bytes', 'n'], ['busy', 'n'], ['sharing', 'n'], ['exposed', 'n'], ['limited by']],
    answer.communication.map(c => [escape_html(c.kind), escape_html(c.group), c.group_size, c.count, bytes_text(c.bytes), duration(c.busy_s), duration(c.sharing_s), duration(c.exposed_s), escape_html(c.limited_by)]));
  const path = table([['critical path'], ['time', 'n'], ['share', 'n']],
    answer.critical_path.slice(0, 12).map(c => [escape_html(c.resource), duration(c.s), percent(c.s / answer.step_time_s)]));
  const beside = answer.interference_s > 0 ?
    `<p class="hint">Kernels take ${duration(answer.interference_s)} longer because of transfers and other kernels beside them.</p>` : '';
  return section('Why', `<div class="two"><div>${collectives}${beside}</div><div>${path}</div></div>`);
}

function owners() {
  if (!memory.owners.length) return '';
  return section(`Live at the memory peak (${escape_html(memory.peak_at)})`, table([['category'], ['unit'], ['bytes', 'n']],
    memory.owners.slice(0, 15).map(o => [escape_html(o.category), escape_html(o.unit), gib(o.bytes) + ' GiB'])));
}

function uncertainty() {
  if (!answer.uncertainty.length) return '';
  const outside = answer.outside_calibration.length ?
    `<p class="hint">Outside what was calibrated: ${answer.outside_calibration.map(escape_html).join('; ')}</p>` : '';
  return section('Where the range of the step comes from', table([['quantity'], ['one deviation', 'n'], ['step', 'n'], ['source']],
    answer.uncertainty.map(u => [escape_html(u.quantity), percent(u.sd), percent(u.effect), escape_html(u.source)])) + outside);
}

function assumptions() {
  return section('Assumptions and their sources', table([['quantity'], ['value', 'n'], ['kind'], ['source']],
    answer.provenance.map(p => [escape_html(p.quantity), escape_html(p.value), escape_html(p.kind), escape_html(p.source)])));
}

document.getElementById('page').innerHTML = [
  `<h1>${escape_html(answer.model)} on ${escape_html(answer.machines)}</h1>`,
  `<p class="sub">${[DATA.model_size, answer.framework, DATA.precision, DATA.wrapping].filter(Boolean).map(escape_html).join(' · ')}` +
    DATA.job.filter(Boolean).map(line => `<br>${escape_html(line)}`).join('') + '</p>',
  verdict(), streams_section(),
  DATA.memory.points.length ? section('Memory over time by category', '<div id="memory"></div>') : '',
  suggestions(),
  DATA.wrap.length ? section('Wrap curve: step time over memory', '<div id="wrap"></div><details><summary>All wrappings</summary><div id="wraptable"></div></details>') : '',
  why(), owners(), uncertainty(), assumptions()].join('');
