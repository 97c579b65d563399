// Tests of the modules that think; gives a list of what is wrong.
(async () => {
  const [state, filter, signs, model, layout, dom] = await Promise.all(['state', 'filter', 'signs', 'model', 'layout', 'dom'].map((n) => import(`${location.origin}/${n}.js`)));
  const failures = [];
  const same = (what, got, want) => {
    if (JSON.stringify(got) !== JSON.stringify(want)) failures.push(`${what}: ${JSON.stringify(got)}, wanted ${JSON.stringify(want)}`);
  };

  // Addresses: what is shared comes back; nonsense is the overview.
  const shared = { view: 'matrix', ns: 'a&b', q: 'to:x y=z #?', port: '53/UDP', outside: '1', from: 'fd00::1', to: '[fd00::2]:80/tcp', at: '', policy: '', node: '' };
  same('an address', state.parse(state.format(shared)), shared);
  same('no address', state.parse('').view, 'overview');
  same('a strange address', state.parse('#__proto__?constructor=1&ns=%').view, 'overview');
  for (const [text, want] of [['', ''], ['80', '80/TCP'], [' 53 / udp ', '53/UDP'], ['0', null], ['65536', null], ['http', null], ['80/icmp', null], ['080', '80/TCP']]) same(`port ${text}`, state.portOf(text), want);

  // Ends and ports, there and back.
  for (const [text, want] of [['shop/db', ['shop/db', '', '']], ['shop/db:5432/tcp', ['shop/db', '5432', 'tcp']], ['shop/tcp', ['shop/tcp', '', '']], ['shop/db/icmp', ['shop/db', '', 'icmp']],
    ['world/udp', ['world', '', 'udp']], ['fd00::1', ['fd00::1', '', '']], ['[fd00::1]:80/tcp', ['fd00::1', '80', 'tcp']], ['10.0.0.1:80', ['10.0.0.1', '80', '']]]) {
    const { name, port, protocol } = signs.splitTarget(text);
    same(`target ${text}`, [name, port, protocol], want);
  }
  same('a target of IPv6', signs.target('fd00::1', '80/TCP'), '[fd00::1]:80/tcp');
  same('a target without a port', signs.target('fd00::1', ''), 'fd00::1');

  const outside = [{ name: 'shop/a', pods: ['shop/a', 'shop/b'] }, { name: '10.0.0.0/8', sample: '10.0.0.0' }, { name: 'world IPv6', sample: '::' }];
  same('ends', [[0, 0], [0, 1], [2, 0], [1, 2]].map(([i, j]) => signs.endsOf(outside, i, j)),
    [{ from: 'shop/a', to: 'shop/b' }, { from: 'shop/a', to: '10.0.0.0' }, { from: 'world', to: 'shop/a' }, null]);

  // Signs.
  const values = ['none', 'all', 'TCP 80', ...Array.from({ length: 30 }, (_, i) => `TCP ${1000 + i}`)];
  same('signs', signs.signsOf(values, '').map((s) => s.sign).filter((s, i) => [0, 1, 2, 3, 27, 28, 29].includes(i)), ['·', '■', 'A', 'B', 'Z', 'AA', 'AB']);
  same('signs of a port', signs.signsOf(['none', 'TCP 80'], '80/TCP').map((s) => s.sign), ['·', '■']);

  // The filter.
  const groups = [{ name: 'shop/web', namespace: 'shop', pods: ['shop/web'] }, { name: 'shop app=db', namespace: 'shop', pods: ['shop/db-1', 'shop/db-2'] }, { name: 'team/web', namespace: 'team', pods: ['team/web'] }, { name: '10.0.0.0/8' }];
  const matrix = { groups, labels: [['app=web'], ['app=db', 'tier=back'], ['app=web'], []], values: ['none', 'all', 'TCP 5432'], cells: [[1, 2, 1, 0], [0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]] };
  const searched = filter.index(matrix);
  const ends = (s) => { const { from, to } = filter.ends(searched, s); return [from, to]; };
  for (const [s, from, to] of [[{}, [0, 1, 2, 3], [0, 1, 2, 3]], [{ q: 'WEB' }, [0, 2], [0, 2]], [{ ns: 'shop', q: 'web' }, [0], [0]], [{ q: 'to:app=db' }, [0, 1, 2, 3], [1]], [{ q: '-web' }, [1, 3], [1, 3]],
    [{ q: 'tier=b from:db-2' }, [1], [1]], [{ q: 'tier=x' }, [], []], [{ q: ' - from: ' }, [0, 1, 2, 3], [0, 1, 2, 3]], [{ ns: 'shop' }, [0, 1, 3], [0, 1, 3]]]) same(`filter ${JSON.stringify(s)}`, ends(s), [from, to]);

  // The graph: who may open what, and what everyone may is no arrow.
  const all = filter.ends(searched, {});
  const g = model.modelOf(matrix, all, signs.signsOf(matrix.values, ''));
  same('nodes', g.nodes.map((n) => n.name), ['web', 'app=db', 'web', '10.0.0.0/8']);
  same('what db offers', g.nodes[1].ports.map((p) => [p.text, p.from]), [['TCP 5432', [0]], ['everything', [1]]]);
  same('arrows', g.edges.map((e) => [e.from, e.to]), [[2, 0], [0, 1]]);
  const many = { groups: Array.from({ length: 6 }, (_, i) => ({ name: `n/p${i}`, namespace: 'n', pods: [`n/p${i}`] })), values: ['none', 'TCP 80'], cells: Array.from({ length: 6 }, (_, i) => Array.from({ length: 6 }, (_, j) => (j === 0 && i !== 5 ? 1 : 0))) };
  const m = model.modelOf(many, filter.ends(filter.index(many), {}), signs.signsOf(many.values, ''));
  same('everyone', [m.nodes[0].ports[0].everyone, m.edges.length], [true, 0]);

  many.groups[5] = { name: '10.0.0.0/8' };
  many.cells[5][0] = 1;
  const o = model.modelOf(many, filter.ends(filter.index(many), {}), signs.signsOf(many.values, ''));
  same('everyone, and from outside', [o.nodes[0].ports[0].everyone, o.edges.map((e) => [e.from, e.to])], [true, [[5, 0]]]);

  // Where they stand: sources left of targets, the same again, nothing on top of another.
  same('ranks', layout.ranks(5, [{ from: 0, to: 1 }, { from: 1, to: 2 }, { from: 2, to: 1 }, { from: 2, to: 3 }]), [0, 1, 2, 3, 0]);
  same('a chain backwards', layout.ranks(4, [{ from: 3, to: 2 }, { from: 2, to: 1 }, { from: 1, to: 0 }]), [3, 2, 1, 0]);
  const nodes = Array.from({ length: 120 }, (_, i) => ({ full: `n${String(i).padStart(3, '0')}`, namespace: `ns${i % 7}`, ports: Array.from({ length: i % 4 }, () => ({})) }));
  const edges = nodes.flatMap((_, i) => [{ from: i, to: (i * 7 + 3) % 120, port: 0 }, { from: (i * 5) % 90, to: i, port: 0 }]).filter((e) => e.from !== e.to && e.to < 100 && e.from < 100);
  const one = layout.layout(nodes, edges), two = layout.layout(nodes, edges);
  same('again', one, two);
  let over = 0;
  for (let i = 0; i < 120; i++) for (let j = 0; j < i; j++) {
    const a = one.at[i], b = one.at[j];
    if (a.x < b.x + layout.box.width && b.x < a.x + layout.box.width && a.y < b.y + layout.heightOf(nodes[j]) && b.y < a.y + layout.heightOf(nodes[i])) over++;
  }
  same('boxes on top of others', over, 0);
  same('inside', one.at.every((p, i) => p.x >= 0 && p.y >= 0 && p.x + layout.box.width <= one.width && p.y + layout.heightOf(nodes[i]) <= one.height), true);
  same('an empty graph', layout.layout([], []), { at: [], width: 0, height: 0, restTop: -1 });
  const chain = Array.from({ length: 29999 }, (_, i) => ({ from: i, to: i + 1 }));
  same('a long chain', layout.ranks(30000, chain)[29999], 29999);

  // Text is text.
  const e = dom.h('p', { title: '<b>' }, '<img src=x onerror=alert(1)>', [null, false, 0]);
  same('markup', [e.children.length, e.textContent], [0, '<img src=x onerror=alert(1)>0']);
  same('ages', ['2026-01-01T00:00:00Z', '0001-01-01T00:00:00Z', 'x'].map((t) => dom.age(t, Date.parse('2026-01-01T00:10:00Z'))), ['10m', '', '']);
  return failures;
})()
