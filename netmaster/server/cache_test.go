package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// named is an election whose leader is known by name.
type named struct {
	*election
	leader *atomic.Value // string
}

func (n *named) Leader() string {
	name, _ := n.leader.Load().(string)
	return name
}

// group are netmasters that compete, and share a memcached and a key.
type group struct {
	*world
	socket  string
	leader  atomic.Value
	masters map[string]*master
	parts   map[string]*election
}

func newGroup(t *testing.T, names ...string) *group {
	g := &group{world: newWorld(t, shop(t)...), masters: map[string]*master{}, parts: map[string]*election{}}
	g.socket, _ = memcached(t)
	for _, name := range names {
		g.add(name)
	}
	return g
}

func (g *group) add(name string) *master {
	e := &election{terms: make(chan *played)}
	g.parts[name] = e
	dir := g.dir
	g.dir = g.TempDir()
	defer func() { g.dir = dir }()
	m := g.start(func(cfg *Config) {
		cfg.Election = &named{e, &g.leader}
		cfg.Memcached = []string{g.socket}
		cfg.CacheKey = func() []byte { return []byte("the netmasters' secret") }
		cfg.Roster = &watch.Roster{
			Client:    g.client,
			Namespace: "flowkeep-system",
			Identity:  name,
			Address:   cfg.Listener.Addr().String(),
			Every:     10 * time.Millisecond,
		}
	})
	g.masters[name] = m
	m.ready()
	return m
}

// lead has one lead, and returns when the others know where it is.
func (g *group) lead(name string, epoch uint64) *played {
	g.Helper()
	term := g.parts[name].begin(epoch)
	g.leader.Store(name)
	for _, m := range g.masters {
		until(g.T, "the leader is reached", func() bool {
			_, err := m.answer(inspect.Question{Kind: inspect.AskStatus})
			return err == nil
		})
	}
	return term
}

// answer returns the answer as it comes.
func (m *master) answer(q inspect.Question) (a *inspect.Answer, err error) {
	m.ask(func(c grpc.ClientConnInterface) error {
		a, err = inspect.AskRaw(m.Context(), c, &q)
		return nil
	})
	return a, err
}

func (m *master) mustAnswer(q inspect.Question) *inspect.Answer {
	m.Helper()
	a, err := m.answer(q)
	if err != nil {
		m.Fatalf("%+v: %v", q, err)
	}
	return a
}

// matrixAt is a question that differs by number.
func matrixAt(n int) inspect.Question {
	return inspect.Question{Kind: inspect.AskMatrix, Matrix: &explain.Question{Protocol: policy.TCP, Port: uint16(n)}}
}

// TestStandby_AnswersOfTheLeadersState: what depends on the state alone comes from the cache, of exactly the state that
// the leader is at, and the answer shows it. All else comes from the leader.
func TestStandby_AnswersOfTheLeadersState(t *testing.T) {
	g := newGroup(t, "a", "b")
	a, b := g.masters["a"], g.masters["b"]
	if _, err := b.answer(matrixAt(1)); status.Code(err) != codes.Unavailable {
		t.Errorf("without a leader: %v", err)
	}
	term := g.lead("a", 5)
	first := b.mustAnswer(matrixAt(1))
	if c := first.Cached; c == nil || c.Source != "engine" || c.Standby != "" || c.Epoch != 5 {
		t.Errorf("the first is not the leader's: %+v", c)
	}
	again := b.mustAnswer(matrixAt(1))
	if c := again.Cached; c == nil || c.Source != "in-process" || c.Standby != "b" || c.Revision != first.Cached.Revision {
		t.Errorf("the second is not the standby's: %+v", c)
	}
	if string(again.Body) != string(first.Body) || string(a.mustAnswer(matrixAt(1)).Body) != string(first.Body) {
		t.Errorf("answers differ:\n%s\n%s", first.Body, again.Body)
	}
	pods := g.client.CoreV1().Pods("ns")
	if _, err := pods.Create(t.Context(), pod("more", "web", "node2", "10.0.2.9"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the standby's answer is of the new state", func() bool {
		x := b.mustAnswer(matrixAt(1))
		return strings.Contains(string(x.Body), "ns/more") && x.Cached.Revision > first.Cached.Revision
	})
	var st inspect.Status
	if err := json.Unmarshal(b.mustAnswer(inspect.Question{Kind: inspect.AskStatus}).Body, &st); err != nil || st.Leader.Epoch != 5 {
		t.Errorf("%+v, %v", st.Leader, err)
	}
	nothing := inspect.Question{Kind: inspect.AskCapture, ID: "ns/none"}
	b.ask(func(c grpc.ClientConnInterface) error {
		err := inspect.Follow(t.Context(), c, nothing, func(json.RawMessage) error { return nil })
		if err == nil || strings.Contains(err.Error(), "standby") {
			t.Errorf("the stream is not the leader's: %v", err)
		}
		return nil
	})
	if err := term.end(); err != nil {
		t.Fatal(err)
	}
	until(t, "the state of one that leads no more is not used", func() bool {
		_, err := b.answer(matrixAt(1))
		return status.Code(err) == codes.Unavailable
	})
}

// lists returns the questions that a standby answers from its cache.
func lists() map[string]inspect.Question {
	policyText := `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
		"metadata": {"name": "x", "namespace": "ns"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}`
	try := inspect.Trial{Policies: []json.RawMessage{json.RawMessage(policyText)}}
	return map[string]inspect.Question{
		"policy ls":         {Kind: inspect.AskPolicies, Counts: true},
		"policy ls -o json": {Kind: inspect.AskPolicies},
		"policy ls -n":      {Kind: inspect.AskPolicies, Namespace: "ns"},
		"policy show":       {Kind: inspect.AskPolicies, ID: "ns/p"},
		"policies":          {Kind: inspect.AskPolicies, Rules: true},
		"policy names":      {Kind: inspect.AskPolicies, Names: true},
		"endpoint ls":       {Kind: inspect.AskEndpoints},
		"endpoint show":     {Kind: inspect.AskEndpoints, ID: "ns/web"},
		"endpoint names":    {Kind: inspect.AskEndpoints, Names: true},
		"lint":              {Kind: inspect.AskLint},
		"lint -n":           {Kind: inspect.AskLint, Namespace: "ns"},
		"matrix":            matrixAt(1),
		"diff, not live":    {Kind: inspect.AskDiff, Diff: &try},
		"explain":           explanation("ns/web", "ns/db"),
		"cache lookup":      {Kind: inspect.AskLookup, Namespace: "ns", Selector: web.Pods},
		"lookup, no pods":   {Kind: inspect.AskLookup, Namespace: "none", Selector: web.Pods},
	}
}

// explanation is a question for what the policies say, without proof.
func explanation(from, to string) inspect.Question {
	target := &inspect.Target{Name: to, Port: "5432"}
	return inspect.Question{Kind: inspect.AskExplain, From: from, To: target, Unproved: true}
}

// withoutSource returns an answer's body without the place where it was found, which look-ups have in it.
func withoutSource(a *inspect.Answer) string {
	return regexp.MustCompile(`"source":"[a-z-]*"`).ReplaceAllString(string(a.Body), "")
}

// TestStandby_Lists: of every list, view and look-up a standby gives the leader's answer, shows the state that it is
// of, and answers the next time from its cache.
func TestStandby_Lists(t *testing.T) {
	g := newGroup(t, "a", "b")
	g.lead("a", 5)
	a, b := g.masters["a"], g.masters["b"]
	for name, q := range lists() {
		t.Run(name, func(t *testing.T) {
			until(t, "the standby answers from its cache", func() bool {
				want, got := a.mustAnswer(q), b.mustAnswer(q)
				if withoutSource(got) != withoutSource(want) {
					t.Fatalf("%s\nthe leader:\n%s", got.Body, want.Body)
				}
				c := got.Cached
				if c == nil || c.Epoch != 5 || c.Revision != want.Cached.Revision {
					t.Fatalf("the state is not shown: %+v", c)
				}
				return c.Standby == "b"
			})
		})
	}
}

// TestStandby_RightsBeforeCache: who may not query is refused what is cached, by leader and standby.
func TestStandby_RightsBeforeCache(t *testing.T) {
	g := newGroup(t, "a", "b")
	g.lead("a", 5)
	q := inspect.Question{Kind: inspect.AskPolicies}
	until(t, "the standby has the answer", func() bool { return g.masters["b"].mustAnswer(q).Cached.Standby == "b" })
	config, err := g.files("node1").ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range g.masters {
		conn, err := grpc.NewClient("passthrough:///"+m.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		if a, err := inspect.AskRaw(t.Context(), conn, &q); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s answers a node: %+v, %v", name, a, err)
		}
		conn.Close()
	}
}

// TestStandby_ReportsOfNodes: what nodes report of policies makes a new state for lists of policies, and for nothing
// else.
func TestStandby_ReportsOfNodes(t *testing.T) {
	g := newGroup(t, "a", "b")
	g.lead("a", 5)
	a, b := g.masters["a"], g.masters["b"]
	policies := inspect.Question{Kind: inspect.AskPolicies}
	fromStandby := func(q inspect.Question) (x *inspect.Answer) {
		until(t, "the standby answers from its cache", func() bool {
			x = b.mustAnswer(q)
			return x.Cached.Standby == "b"
		})
		return x
	}
	before, matrix := fromStandby(policies), fromStandby(matrixAt(1))
	if !strings.Contains(string(before.Body), `"away"`) {
		t.Fatalf("before the node is connected: %s", before.Body)
	}
	held(a, "node1")
	until(t, "the standby has what the node reports", func() bool {
		body := string(b.mustAnswer(policies).Body)
		return strings.Contains(body, `"realised"`) && !strings.Contains(body, `"away"`)
	})
	after := fromStandby(policies)
	if after.Cached.Standing == before.Cached.Standing || string(after.Body) == string(before.Body) {
		t.Errorf("the state is the same: %+v, %+v", before.Cached, after.Cached)
	}
	if again := fromStandby(matrixAt(1)); again.Cached.Standing != 0 || matrix.Cached.Standing != 0 {
		t.Errorf("a matrix depends on what nodes report: %+v", again.Cached)
	}
}

// TestStandby_AddressesOfNodes: a change of a node's address, on which explanations depend, makes a new state.
func TestStandby_AddressesOfNodes(t *testing.T) {
	g := newGroup(t, "a", "b")
	g.lead("a", 5)
	of := explanation("192.0.2.1", "ns/db")
	fromStandby := func(ofTheNode bool) (x *inspect.Answer) {
		until(t, "the standby answers from its cache", func() bool {
			x = g.masters["b"].mustAnswer(of)
			return x.Cached.Standby == "b" && strings.Contains(string(x.Body), `"ofTheNode":true`) == ofTheNode
		})
		return x
	}
	before := fromStandby(true)
	nodes := g.client.CoreV1().Nodes()
	n, err := nodes.Get(t.Context(), "node1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses[0].Address = "192.0.2.77"
	if _, err := nodes.Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if after := fromStandby(false); after.Cached.Revision <= before.Cached.Revision {
		t.Errorf("the state is the same: %+v, %+v", before.Cached, after.Cached)
	}
}

// stored returns the keys of what is in memcached.
func (g *group) stored() (keys []string) {
	conn := g.raw()
	defer conn.Close()
	fmt.Fprint(conn, "lru_crawler metadump all\r\n")
	for lines := bufio.NewScanner(conn); lines.Scan() && lines.Text() != "END"; {
		if key, ok := strings.CutPrefix(strings.Fields(lines.Text())[0], "key="); ok {
			keys = append(keys, strings.NewReplacer("%2F", "/", "%2f", "/").Replace(key))
		}
	}
	return keys
}

func (g *group) raw() net.Conn {
	g.Helper()
	conn, err := net.Dial("unix", g.socket)
	if err != nil {
		g.Fatal(err)
	}
	return conn
}

// read and write are memcached's own protocol.
func (g *group) read(key string) []byte {
	conn := g.raw()
	defer conn.Close()
	fmt.Fprintf(conn, "get %s\r\n", key)
	var flags, n int
	r := bufio.NewReader(conn)
	if _, err := fmt.Fscanf(r, "VALUE "+key+" %d %d\r\n", &flags, &n); err != nil {
		g.Fatalf("%s: %v", key, err)
	}
	value := make([]byte, n)
	for i := range value {
		value[i], _ = r.ReadByte()
	}
	return value
}

func (g *group) write(key string, value []byte) {
	conn := g.raw()
	defer conn.Close()
	fmt.Fprintf(conn, "set %s 0 0 %d\r\n%s\r\n", key, len(value), value)
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || strings.TrimSpace(line) != "STORED" {
		g.Fatalf("%s: %q, %v", key, line, err)
	}
}

// TestStandby_Memcached: a standby has from memcached what the leader computed.
func TestStandby_Memcached(t *testing.T) {
	g := newGroup(t, "a", "b")
	g.lead("a", 5)
	n := 0
	until(t, "the standby answers from memcached", func() bool {
		n++ // another question each time: what the leader answers the standby keeps
		before := len(g.stored())
		want := g.masters["a"].mustAnswer(matrixAt(n))
		tries := 0
		until(t, "memcached has it, or leaves it out", func() bool { tries++; return len(g.stored()) > before || tries > 200 })
		got := g.masters["b"].mustAnswer(matrixAt(n))
		if string(got.Body) != string(want.Body) {
			t.Fatalf("%s\n%s", got.Body, want.Body)
		}
		return got.Cached.Source == "memcached" && got.Cached.Standby == "b"
	})
}

// questions are of each kind that memcached has a part in.
func questions() []inspect.Question {
	policyText := `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x", "namespace": "ns"}, ` +
		`"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}`
	try := inspect.Trial{Policies: []json.RawMessage{json.RawMessage(policyText)}, Connections: true}
	return []inspect.Question{
		{Kind: inspect.AskDiff, Diff: &try},
		explanation("ns/web", "ns/db"),
		matrixAt(5432),
		{Kind: inspect.AskLint},
		{Kind: inspect.AskEndpoints},
		{Kind: inspect.AskDiff, Diff: &inspect.Trial{Policies: []json.RawMessage{json.RawMessage(policyText)}}},
		{Kind: inspect.AskPolicies, Rules: true},
		{Kind: inspect.AskPolicies, ID: "ns/p"},
		{Kind: inspect.AskLookup, Namespace: "ns", Selector: web.Pods},
	}
}

// bodies are the answers to all questions, without where they were found.
func (m *master) bodies() (out []string) {
	for _, q := range questions() {
		body := string(m.mustAnswer(q).Body)
		if q.Kind == inspect.AskLookup {
			_, body, _ = strings.Cut(body, "endpoints")
		}
		out = append(out, body)
	}
	return out
}

// netctlCommands returns a command of netctl for each kind of question that memcached has a part in.
func netctlCommands(t *testing.T) [][]string {
	const text = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x, namespace: ns},
		spec: {podSelector: {}, policyTypes: [Ingress]}}`
	file := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return [][]string{
		{"policy", "ls"},
		{"policy", "show", "ns/p"},
		{"endpoint", "ls"},
		{"matrix", "--port", "5432"},
		{"lint"},
		{"explain", "ns/web", "ns/db:5432"},
		{"diff", "-f", file, "--no-connections"},
		{"cache", "lookup", "-n", "ns", "-l", "app=web"},
	}
}

// outputs returns what netctl prints of a netmaster, with the exit codes.
func (m *master) outputs(n *netctl, commands [][]string) (out []string) {
	m.Helper()
	for _, args := range commands {
		text, code := n.output(m.T, m.addr, args...)
		out = append(out, fmt.Sprintf("$ netctl %s\n%s(exit code %d)", strings.Join(args, " "), text, code))
	}
	return out
}

// TestFalseEntries_ChangeNoAnswer writes into a real memcached: values of other entries, of another key, and nonsense,
// at all names that are used. The output of netctl, and the answers to all questions, are the same as before.
func TestFalseEntries_ChangeNoAnswer(t *testing.T) {
	g := newGroup(t, "a")
	g.lead("a", 5)
	a := g.masters["a"]
	want := a.bodies() // and the administrator's certificate
	n, commands := buildNetctl(t, g.files("admin")), netctlCommands(t)
	printed := a.outputs(n, commands)
	const most = 12 // seven answers, a difference, verdicts, the pods of the policy, those of its peer, and a look-up
	until(t, "memcached has them", func() bool {
		if len(g.stored()) >= most {
			return true
		}
		g.masters["a"].touch() // what memcached could not take is computed and sent again
		want = a.bodies()
		return false
	})
	b := g.add("b")
	foreign := g.foreign()
	round, refused := 0, map[*master]bool{}
	until(t, "both have read and refused false entries", func() bool {
		round++
		g.falsify(round, foreign(a))
		for _, m := range []*master{a, b} {
			before := m.metric("labelcache_refused_total")
			if got := m.outputs(n, commands); !slices.Equal(got, printed) {
				t.Fatalf("false entries change the output of netctl:\n%s\nbefore:\n%s", strings.Join(got, "\n"),
					strings.Join(printed, "\n"))
			}
			refused[m] = refused[m] || m.metric("labelcache_refused_total") > before
			if got := m.bodies(); !slices.Equal(got, want) {
				t.Fatalf("false entries change answers:\n%q\nwant\n%q", got, want)
			}
		}
		if refused[a] && refused[b] {
			return true
		}
		a.touch() // else both have the answers in process
		return false
	})
}

// foreign returns a function that returns an entry of the state of a netmaster, sealed with another key than its own.
func (g *group) foreign() func(*master) []byte {
	c := labelcache.New(labelcache.Config{
		Servers: []string{g.socket},
		Key:     func() []byte { return []byte("the secret of other netmasters") },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	g.Cleanup(func() { cancel(); <-done })
	value := append([]byte(`["ns/evil"]`), bytes.Repeat([]byte(" "), foreignSize)...)
	return func(m *master) (entry []byte) {
		state := m.mustAnswer(matrixAt(1)).Cached
		at := labelcache.Stamp{Epoch: state.Epoch, Term: state.Term, Revision: state.Revision}
		until(g.T, "memcached has an entry of another key", func() bool {
			c.Put("members", at, value, true)
			for _, key := range g.stored() {
				if entry = g.read(key); len(entry) > foreignSize {
					return true
				}
			}
			return false
		})
		return entry
	}
}

// foreignSize is the size of an entry that netmasters of tests do not store, in bytes.
const foreignSize = 20_000

// falsify replaces all that is in memcached, each entry by another kind of false one in each round.
func (g *group) falsify(round int, foreign []byte) {
	keys := g.stored()
	values := make([][]byte, len(keys))
	for i, key := range keys {
		genuine := g.read(key)
		kinds := [][]byte{[]byte("nonsense"), []byte(`["ns/evil"]`), genuine, append(slices.Clip(genuine), 'x'), {}, foreign}
		values[i] = kinds[(i+round)%len(kinds)]
	}
	for i, key := range keys {
		g.write(key, values[(i+1)%len(keys)])
	}
}

// touch changes the state, but nothing that is in force.
func (m *master) touch() {
	m.Helper()
	name := fmt.Sprintf("touch-%d", time.Now().UnixNano())
	before := m.mustAnswer(matrixAt(1)).Cached.Revision
	if _, err := m.client.CoreV1().Namespaces().Create(m.Context(), ns(name), metav1.CreateOptions{}); err != nil {
		m.Fatal(err)
	}
	until(m.T, "the state is another", func() bool {
		return m.mustAnswer(matrixAt(1)).Cached.Revision > before
	})
}
