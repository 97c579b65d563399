package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// rosterName is of the ConfigMap in which netmasters that stand by have an entry each.
const rosterName = "netmaster-standbys"

// Roster is where netmasters that stand by tell of themselves, and the leader reads of them. Nothing is decided by it (docs/decisions/023).
type Roster struct {
	Client    kubernetes.Interface
	Namespace string
	// Identity is this one's in the Lease.
	Identity, Version string
	// Every is how often a standby tells of itself, and the leader looks; 0: every 5 s.
	Every time.Duration
}

const (
	rosterTime = 2 * time.Second // for a request
	mostQuiet  = 4               // times Every: how long a standby counts that tells nothing new
)

// Period is how often to tell.
func (r *Roster) Period() time.Duration { return cmp.Or(r.Every, 5*time.Second) }

// entry is what a standby writes. When it told, by its own clock, only has one time differ from another.
type entry struct {
	inspect.Standby
	Told time.Time `json:"told"`
}

// Tell writes that this one stands by; notReady is why it could not take over now, or empty.
func (r *Roster) Tell(ctx context.Context, notReady string) error {
	text, err := json.Marshal(entry{inspect.Standby{Identity: r.Identity, Version: r.Version, NotReady: notReady}, time.Now()})
	if err != nil {
		return err
	}
	value := string(text)
	return r.write(ctx, map[string]*string{r.key(): &value})
}

// Leave takes this one's entry away.
func (r *Roster) Leave(ctx context.Context) error {
	if err := r.write(ctx, map[string]*string{r.key(): nil}); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// Watch tells saw of those that stand by, again and again until ctx ends, and takes away what is left of those that do not any more.
func (r *Roster) Watch(ctx context.Context, saw func([]inspect.Standby, error)) {
	seen := sightings{}
	tick := time.NewTicker(r.Period())
	defer tick.Stop()
	for ctx.Err() == nil {
		var standbys []inspect.Standby
		data, err := r.read(ctx)
		if err == nil {
			var gone map[string]*string
			now := time.Now()
			if standbys, gone = seen.look(data, r.key(), now.Add(-mostQuiet*r.Period()), now); len(gone) > 0 {
				err = r.write(ctx, gone)
			}
		}
		if ctx.Err() == nil {
			saw(standbys, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (r *Roster) read(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, rosterTime)
	defer cancel()
	m, err := r.Client.CoreV1().ConfigMaps(r.Namespace).Get(ctx, rosterName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // nobody has stood by yet
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read ConfigMap %s: %w", rosterName, err)
	}
	return m.Data, nil
}

// write changes some entries, and none of others; nil takes one away.
func (r *Roster) write(ctx context.Context, entries map[string]*string) error {
	ctx, cancel := context.WithTimeout(ctx, rosterTime)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"data": entries})
	if err != nil {
		return err
	}
	maps := r.Client.CoreV1().ConfigMaps(r.Namespace)
	write := func() error {
		_, err := maps.Patch(ctx, rosterName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "flowkeep-netmaster"})
		return err
	}
	err = write()
	if apierrors.IsNotFound(err) && entries[r.key()] != nil {
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: rosterName}}, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", rosterName, err)
	}
	return nil
}

// key is the identity, in letters that a ConfigMap's keys may have.
func (r *Roster) key() string {
	key := strings.Map(func(c rune) rune {
		if strings.ContainsRune("-._", c) || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			return c
		}
		return '_'
	}, r.Identity)
	return key[max(0, len(key)-253):] // letters that no other process has are its end
}

// sightings are, by key, what each entry was when it was last new, and when that was by this one's clock.
type sightings map[string]sighting

type sighting struct {
	text string
	at   time.Time
}

// look tells who stands by, and of what is there what is nobody's any more: what was new before oldest for the last time, what nobody can read, and own,
// for who looks leads.
func (s sightings) look(data map[string]string, own string, oldest, now time.Time) (standbys []inspect.Standby, gone map[string]*string) {
	maps.DeleteFunc(s, func(key string, _ sighting) bool { _, there := data[key]; return !there })
	gone = map[string]*string{}
	for key, text := range data {
		if old, ok := s[key]; !ok || old.text != text {
			s[key] = sighting{text, now}
		}
		var e entry
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Identity == "" || key == own || s[key].at.Before(oldest) {
			gone[key] = nil
			continue
		}
		standbys = append(standbys, e.Standby)
	}
	slices.SortFunc(standbys, func(a, b inspect.Standby) int { return cmp.Compare(a.Identity, b.Identity) })
	return standbys, gone
}
