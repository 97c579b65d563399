package manifests

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/policydb/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	// readInterval is the time between two reads of the directories.
	readInterval = 250 * time.Millisecond
	// maxEvents bounds the events that a watch can be resumed from.
	maxEvents = 10_000
)

// Source holds the objects of directories. It is safe for concurrent use.
type Source struct {
	dirs []string
	log  *slog.Logger

	mu      sync.Mutex
	version uint64
	kinds   map[string]*kind // by resource
	changed chan struct{}    // closed at the next change
}

// kind is the objects of a resource.
type kind struct {
	schema.GroupVersionKind
	resource string
	objects  map[string]object // by namespace and name
	events   []event
	// lost is the version of the newest event that events no longer has.
	lost uint64
}

// object is an object as JSON, and what lists select by.
type object struct {
	text   []byte
	digest [sha256.Size]byte // of the object without its version
	meta   metav1.PartialObjectMetadata
}

func (o *object) matches(s labels.Selector, namespace string) bool {
	return (namespace == "" || o.meta.Namespace == namespace) && s.Matches(labels.Set(o.meta.Labels))
}

// event is a change of an object; before is the object's former state, for selectors.
type event struct {
	version uint64
	kind    watch.EventType
	object  object
	before  *object
}

// Open reads the directories. Its error names each object that an API server would refuse.
func Open(log *slog.Logger, dirs ...string) (*Source, error) {
	s := &Source{
		dirs:    dirs,
		log:     log,
		version: uint64(time.Now().UnixMilli()), // newer than those of an earlier process
		kinds:   map[string]*kind{},
		changed: make(chan struct{}),
	}
	for resource, gvk := range map[string]schema.GroupVersionKind{
		"namespaces":      {Version: "v1", Kind: "Namespace"},
		"nodes":           {Version: "v1", Kind: "Node"},
		"pods":            {Version: "v1", Kind: "Pod"},
		"services":        {Version: "v1", Kind: "Service"},
		"networkpolicies": {Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
		"endpointslices":  {Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"},
	} {
		s.kinds[resource] = &kind{GroupVersionKind: gvk, resource: resource, objects: map[string]object{}}
	}
	c, err := s.read()
	if err != nil {
		return nil, err
	}
	for _, note := range c.Notes {
		log.Warn("manifests have objects that are not used", "objects", note)
	}
	read, err := contentsOf(c)
	if err != nil {
		return nil, err
	}
	return s, s.apply(read)
}

// Run reads the directories four times a second and applies what changed, until ctx ends. It applies only what two reads
// in a row have found: a program that truncates a file before it writes the file would otherwise take all of its policies
// away for an instant. Directories with an object that an API server would refuse change nothing: the error is logged
// once.
func (s *Source) Run(ctx context.Context) {
	tick := time.NewTicker(readInterval)
	defer tick.Stop()
	var logged string
	var last contents
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		next, err := s.readContents()
		if err == nil && next.equal(last) {
			err = s.apply(next)
		}
		last = next
		switch {
		case err == nil && logged != "":
			s.log.Info("the manifests are valid again")
			logged = ""
		case err != nil && err.Error() != logged:
			s.log.Error("the manifests are not valid; nothing of them is applied", "error", err)
			logged = err.Error()
		}
	}
}

// RestConfig returns the configuration of a client of the source.
func (s *Source) RestConfig() *rest.Config {
	return &rest.Config{Host: "http://manifests.invalid", Transport: s}
}

func (s *Source) read() (*kube.Cluster, error) {
	var all []kube.Object
	var errs []error
	for _, dir := range s.dirs {
		list, err := kube.Read(dir, true, nil)
		all, errs = append(all, list...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return kube.ClusterOf(all)
}

// contents are the objects of the directories, by resource, then by namespace and name.
type contents map[string]map[string]object

// equal reports whether two reads found the same objects.
func (c contents) equal(d contents) bool {
	return maps.EqualFunc(c, d, func(a, b map[string]object) bool {
		return maps.EqualFunc(a, b, func(x, y object) bool { return x.digest == y.digest })
	})
}

// readContents reads the directories; its contents are nil where they have an error.
func (s *Source) readContents() (contents, error) {
	c, err := s.read()
	if err != nil {
		return nil, err
	}
	return contentsOf(c)
}

func contentsOf(c *kube.Cluster) (contents, error) {
	next := contents{}
	for resource, list := range map[string][]metav1.Object{
		"namespaces":      asObjects(c.Namespaces),
		"nodes":           asObjects(c.Nodes),
		"pods":            asObjects(c.Pods),
		"services":        asObjects(c.Services),
		"networkpolicies": asObjects(c.Policies),
		"endpointslices":  asObjects(c.EndpointSlices),
	} {
		next[resource] = map[string]object{}
		for _, m := range list {
			o, err := objectOf(m)
			if err != nil {
				return nil, err
			}
			next[resource][m.GetNamespace()+"/"+m.GetName()] = o
		}
	}
	return next, nil
}

// apply makes the source hold these objects.
func (s *Source) apply(next contents) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.version
	for _, resource := range slices.Sorted(maps.Keys(next)) {
		if err := s.replace(s.kinds[resource], next[resource]); err != nil {
			return err
		}
	}
	if s.version != before {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return nil
}

func asObjects[T metav1.Object](list []T) []metav1.Object {
	out := make([]metav1.Object, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out
}

func objectOf(m metav1.Object) (object, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return object{}, fmt.Errorf("write %s/%s as JSON: %w", m.GetNamespace(), m.GetName(), err)
	}
	return object{text: text, digest: sha256.Sum256(text)}, nil
}

// replace makes a kind hold these objects and appends an event for each change.
func (s *Source) replace(k *kind, next map[string]object) error {
	for _, key := range slices.Sorted(maps.Keys(k.objects)) {
		if _, ok := next[key]; !ok {
			o := k.objects[key]
			delete(k.objects, key)
			if err := s.note(k, watch.Deleted, key, o, &o); err != nil {
				return err
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(next)) {
		was, ok := k.objects[key]
		var err error
		switch {
		case !ok:
			err = s.note(k, watch.Added, key, next[key], nil)
		case was.digest != next[key].digest:
			err = s.note(k, watch.Modified, key, next[key], &was)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// note gives an object the next version, and keeps it and the event.
func (s *Source) note(k *kind, what watch.EventType, key string, o object, before *object) error {
	s.version++
	generation := int64(1)
	if before != nil {
		generation = before.meta.Generation + 1
	}
	o, err := o.at(k, s.version, generation)
	if err != nil {
		return err
	}
	if what != watch.Deleted {
		k.objects[key] = o
	}
	k.events = append(k.events, event{version: s.version, kind: what, object: o, before: before})
	if n := len(k.events) - maxEvents; n > 0 {
		k.lost = k.events[n-1].version
		k.events = slices.Delete(k.events, 0, n)
	}
	return nil
}

// at returns the object with a version, a generation, its kind, and a creation time that does not change.
func (o object) at(k *kind, version uint64, generation int64) (object, error) {
	var fields map[string]any
	if err := json.Unmarshal(o.text, &fields); err != nil {
		return o, err
	}
	fields["apiVersion"], fields["kind"] = k.GroupVersion().String(), k.Kind
	meta, _ := fields["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.FormatUint(version, 10)
	meta["generation"] = generation
	if meta["creationTimestamp"] == nil {
		meta["creationTimestamp"] = time.Unix(0, 0).UTC().Format(time.RFC3339)
	}
	var err error
	if o.text, err = json.Marshal(fields); err != nil {
		return o, err
	}
	o.meta = metav1.PartialObjectMetadata{}
	return o, json.Unmarshal(o.text, &o.meta)
}
