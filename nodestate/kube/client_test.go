package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/nodestate"
	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// server answers as an API server that has one node's object, or none.
type server struct {
	*testing.T
	object    *v1.NodeNetworkState
	unknown   bool   // the CRD is not there
	forbidden string // and how that is said
	puts      int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	status := func(code int, reason metav1.StatusReason, details *metav1.StatusDetails) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Message: s.forbidden, Code: int32(code), Details: details})
	}
	named := &metav1.StatusDetails{Name: "node1", Group: "nmstate.io", Kind: "nodenetworkstates"}
	path := "/apis/nmstate.io/v1/nodenetworkstates"
	switch {
	case s.forbidden != "":
		status(http.StatusForbidden, metav1.StatusReasonForbidden, named)
	case s.unknown:
		status(http.StatusNotFound, metav1.StatusReasonNotFound, &metav1.StatusDetails{})
	case r.Method == http.MethodPost && r.URL.Path == path:
		if s.object != nil {
			status(http.StatusConflict, metav1.StatusReasonAlreadyExists, named)
			return
		}
		s.object = s.body(r)
		s.object.UID, s.object.ResourceVersion, s.object.Generation = "new", "1", 1
		_ = json.NewEncoder(w).Encode(s.object)
	case s.object == nil:
		status(http.StatusNotFound, metav1.StatusReasonNotFound, named)
	case r.Method == http.MethodGet && r.URL.Path == path+"/node1":
		_ = json.NewEncoder(w).Encode(s.object)
	case r.Method == http.MethodPut && r.URL.Path == path+"/node1/status":
		s.puts++
		o := s.body(r)
		if o.ResourceVersion != s.object.ResourceVersion || o.UID != s.object.UID {
			status(http.StatusConflict, metav1.StatusReasonConflict, named)
			return
		}
		s.object.Status = o.Status
		s.object.ResourceVersion += "0"
		_ = json.NewEncoder(w).Encode(s.object)
	default:
		s.Errorf("%s %s", r.Method, r.URL)
	}
}

func (s *server) body(r *http.Request) *v1.NodeNetworkState {
	text, err := io.ReadAll(r.Body)
	o := new(v1.NodeNetworkState)
	if err = errors.Join(err, json.Unmarshal(text, o)); err != nil {
		s.Error(err)
	}
	return o
}

func newServer(t *testing.T) (*server, *Client) {
	t.Helper()
	s := &server{T: t}
	at := httptest.NewServer(s)
	t.Cleanup(at.Close)
	c, err := New(&rest.Config{Host: at.URL}, "node1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return s, c
}

func anObject(version string, generation int64) *v1.NodeNetworkState {
	return &v1.NodeNetworkState{
		TypeMeta:   metav1.TypeMeta{APIVersion: "nmstate.io/v1", Kind: "NodeNetworkState"},
		ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: types.UID("u"), ResourceVersion: version, Generation: generation},
		Spec:       v1.NodeNetworkStateSpec{NodeName: "node1", DesiredState: &v1.State{Raw: json.RawMessage(`{"interfaces": [{"name": "eth1", "mac-address": "AA:BB:CC:DD:EE:FF"}]}`)}},
	}
}

func TestObjectIsMadeAndReported(t *testing.T) {
	s, c := newServer(t)
	if o, err := c.Get(t.Context()); o != nil || err != nil {
		t.Fatalf("%v, %v", o, err)
	}
	o, err := c.Create(t.Context(), nil, v1.NodeNetworkStateStatus{Backend: "fake", Conditions: []metav1.Condition{{Type: v1.ConditionInSync}}})
	if err != nil || o.UID != "new" || !o.Managed || o.Desired != nil || s.object.Status.Backend != "fake" || s.object.Status.ObservedGeneration != 1 {
		t.Fatalf("%v: %+v", err, s.object)
	}
	if _, err := c.Create(t.Context(), nil, v1.NodeNetworkStateStatus{}); !errors.Is(err, nodestate.ErrStale) {
		t.Errorf("made twice: %v", err)
	}
}

func TestReportOfAnotherVersion(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *server)
		stale  bool
	}{
		"as it was":        {func(*server) {}, false},
		"labelled":         {func(s *server) { s.object.ResourceVersion = "8" }, false},
		"another desire":   {func(s *server) { s.object.ResourceVersion, s.object.Generation = "8", 4 }, true},
		"deleted":          {func(s *server) { s.object = nil }, true},
		"deleted and made": {func(s *server) { s.object.ResourceVersion, s.object.UID = "8", "other" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, client := newServer(t)
			s.object = anObject("7", 3)
			o, err := client.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.change(s)
			_, err = client.Report(t.Context(), o, v1.NodeNetworkStateStatus{Backend: "fake"})
			if errors.Is(err, nodestate.ErrStale) != c.stale || !c.stale && err != nil {
				t.Error(err)
			}
			if s.object != nil && (s.object.Status.Backend == "fake") == c.stale {
				t.Errorf("%+v", s.object)
			}
		})
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s, c := newServer(t)
	s.unknown = true
	if _, err := c.Get(t.Context()); err == nil || !strings.Contains(err.Error(), "kubectl apply -f deploy/crds") {
		t.Error(err)
	}
	if _, err := c.Create(t.Context(), nil, v1.NodeNetworkStateStatus{}); err == nil || !strings.Contains(err.Error(), "kubectl apply -f deploy/crds") {
		t.Error(err)
	}
	s.unknown = false
	for message, want := range map[string]string{
		`nodenetworkstates.nmstate.io "node1" is forbidden: User "jane" cannot get resource "nodenetworkstates" in API group "nmstate.io" at the cluster scope`: "bind the ClusterRole flowkeep-node-state",
		`nodenetworkstates.nmstate.io "node1" is forbidden: ValidatingAdmissionPolicy 'flowkeep-own-node' with binding 'flowkeep-own-node' denied request: no`:  "--node-name must be",
	} {
		s.forbidden = message
		if _, err := c.Get(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
	away, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, "node1")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if _, err := away.Get(t.Context()); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Error(err)
	}
}

func TestDesireIsWhatIsMeant(t *testing.T) {
	a, b := anObject("1", 1), anObject("2", 2)
	b.Spec.DesiredState.Raw = json.RawMessage(`{"interfaces": [{"mac-address": "aa:bb:cc:dd:ee:ff", "name": "eth1", "mtu": null}]}`)
	if x, y := objectOf(a), objectOf(b); x.Desire != y.Desire || x.DesiredErr != nil {
		t.Errorf("%q, %q, %v", x.Desire, y.Desire, x.DesiredErr)
	}
	b.Spec.DesiredState.Raw = json.RawMessage(`{"interfaces": [{"name": "eth1", "mtu": "many"}]}`)
	if y := objectOf(b); y.DesiredErr == nil || y.Desire == "" {
		t.Errorf("%+v", y)
	}
	b.Spec.DesiredState.Raw = nil
	if y := objectOf(b); y.Desired != nil || y.Desire != "" || y.DesiredErr != nil {
		t.Errorf("%+v", y)
	}
}

func TestTheNewerIsTheLatest(t *testing.T) {
	_, c := newServer(t)
	signalled := func() bool {
		select {
		case <-c.Changed():
			return true
		default:
			return false
		}
	}
	c.saw(anObject("9", 1))
	if !signalled() {
		t.Error("an object came, and nobody was told")
	}
	c.wrote(anObject("10", 1))
	if o := c.latest(); o.ResourceVersion != "10" {
		t.Error("what was written is forgotten: " + o.ResourceVersion)
	}
	c.saw(anObject("10", 1))
	if signalled() {
		t.Error("the own write comes back as news")
	}
	c.saw(anObject("11", 2))
	if o := c.latest(); o.ResourceVersion != "11" || !signalled() {
		t.Error("news are held up by what was written: " + o.ResourceVersion)
	}
	c.gone()
	if c.latest() != nil || !signalled() {
		t.Error("what is deleted is still there")
	}
}

func TestAddresses(t *testing.T) {
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/node1" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind": "Node", "apiVersion": "v1", "status": {"addresses": [{"type": "Hostname", "address": "192.0.2.1"},
			{"type": "InternalIP", "address": "192.0.2.11"}, {"type": "InternalIP", "address": "2001:db8::11"}, {"type": "ExternalIP", "address": "198.51.100.1"}]}}`)
	}))
	defer at.Close()
	for node, want := range map[string]string{"node1": "[192.0.2.11 2001:db8::11]", "node2": "[]"} {
		c, err := New(&rest.Config{Host: at.URL}, node)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.Addresses(t.Context())); got != want {
			t.Errorf("%s: %s, want %s", node, got, want)
		}
		c.Close()
	}
}

func TestProbes(t *testing.T) {
	code, ready := http.StatusUnauthorized, "True"
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			w.WriteHeader(code)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind": "Node", "apiVersion": "v1", "status": {"conditions": [{"type": "Ready", "status": %q}]}}`, ready)
	}))
	defer at.Close()
	c, err := New(&rest.Config{Host: at.URL}, "node1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	probes, err := c.Probes()
	if err != nil {
		t.Fatal(err)
	}
	ask := func(name string) error {
		for _, p := range probes {
			if p.Name == name {
				return p.Check(t.Context(), nil)
			}
		}
		t.Fatalf("no probe %q", name)
		return nil
	}
	if err := errors.Join(ask("the API server"), ask("the Node")); err != nil {
		t.Error(err)
	}
	code, ready = http.StatusBadGateway, "False"
	if ask("the API server") == nil || ask("the Node") == nil {
		t.Error("what does not hold holds")
	}
	at.Close()
	if ask("the API server") == nil || ask("the Node") == nil {
		t.Error("who is away answers")
	}
}
