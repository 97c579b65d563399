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

// rosterName is the ConfigMap with an entry for each standby.
const rosterName = "netmaster-standbys"

// Roster publishes standbys, and the leader's address. The election does not depend on it (docs/decisions/023).
type Roster struct {
	Client    kubernetes.Interface
	Namespace string
	// Identity is this netmaster's identity in the Lease.
	Identity, Version string
	// Address is this netmaster's address for other netmasters; empty: not published.
	Address string
	// Every is the interval of publishing and reading; 0: 5 s.
	Every time.Duration
}

const (
	rosterTimeout    = 2 * time.Second // of a request
	maxMissedUpdates = 4               // number of intervals without an update after which a standby is considered gone
)

// Period returns the interval of publishing.
func (r *Roster) Period() time.Duration { return cmp.Or(r.Every, 5*time.Second) }

// entry is what a standby publishes. The time, by its own clock, makes each update differ.
type entry struct {
	inspect.Standby
	Told time.Time `json:"told"`
}

// Publish publishes this netmaster as a standby. The argument notReady is why it could not take over now, or empty.
func (r *Roster) Publish(ctx context.Context, notReady string) error {
	text, err := json.Marshal(
		entry{inspect.Standby{Identity: r.Identity, Version: r.Version, NotReady: notReady}, time.Now()})
	if err != nil {
		return err
	}
	value := string(text)
	return r.write(ctx, map[string]*string{r.key(): &value})
}

// leaderKey is the key of the leader's entry. It differs from all identities.
const leaderKey = "-leader"

// whereabouts is the leader's entry.
type whereabouts struct {
	Identity string `json:"identity"`
	Address  string `json:"address"`
}

// AddressOf returns the published address of a leader.
func (r *Roster) AddressOf(ctx context.Context, leader string) (string, error) {
	data, err := r.read(ctx)
	if err != nil {
		return "", err
	}
	var at whereabouts
	if text, ok := data[leaderKey]; ok {
		err = json.Unmarshal([]byte(text), &at)
	}
	if err != nil || at.Identity != leader || at.Address == "" {
		return "", fmt.Errorf("it has not written its address to ConfigMap %s; give it --advertise-address", rosterName)
	}
	return at.Address, nil
}

// advertise adds this leader's entry to write unless data contains it.
func (r *Roster) advertise(data map[string]string, write map[string]*string) {
	text, err := json.Marshal(whereabouts{r.Identity, r.Address})
	own := string(text)
	if was := data[leaderKey]; err == nil && r.Address != "" && was != own {
		write[leaderKey] = &own
	}
	delete(data, leaderKey)
}

// Leave removes this netmaster's entry.
func (r *Roster) Leave(ctx context.Context) error {
	if err := r.write(ctx, map[string]*string{r.key(): nil}); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// Watch calls saw with the standbys at each interval until ctx ends, and removes entries of standbys that are gone.
func (r *Roster) Watch(ctx context.Context, saw func([]inspect.Standby, error)) {
	seen := sightings{}
	tick := time.NewTicker(r.Period())
	defer tick.Stop()
	for ctx.Err() == nil {
		var standbys []inspect.Standby
		data, err := r.read(ctx)
		if err == nil {
			var change map[string]*string
			own := map[string]*string{}
			r.advertise(data, own)
			now := time.Now()
			standbys, change = seen.look(data, r.key(), now.Add(-maxMissedUpdates*r.Period()), now)
			if maps.Copy(change, own); len(change) > 0 {
				err = r.write(ctx, change)
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
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	m, err := r.Client.CoreV1().ConfigMaps(r.Namespace).Get(ctx, rosterName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // no standby yet
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read ConfigMap %s: %w", rosterName, err)
	}
	return m.Data, nil
}

// write changes the given entries; nil removes one.
func (r *Roster) write(ctx context.Context, entries map[string]*string) error {
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"data": entries})
	if err != nil {
		return err
	}
	maps := r.Client.CoreV1().ConfigMaps(r.Namespace)
	write := func() error {
		_, err := maps.Patch(ctx, rosterName, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: "flowkeep-netmaster"})
		return err
	}
	err = write()
	if apierrors.IsNotFound(err) && (entries[r.key()] != nil || entries[leaderKey] != nil) {
		_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: rosterName}},
			metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", rosterName, err)
	}
	return nil
}

// key returns the identity as a valid key of a ConfigMap.
func (r *Roster) key() string {
	key := strings.Map(func(c rune) rune {
		if strings.ContainsRune("-._", c) || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			return c
		}
		return '_'
	}, r.Identity)
	return key[max(0, len(key)-253):] // the end contains the process's random letters
}

// sightings holds for each key the latest entry and its arrival by the local clock.
type sightings map[string]sighting

type sighting struct {
	text string
	at   time.Time
}

// look returns the standbys, and the keys to remove: unreadable entries, those last updated before oldest, and own,
// as the caller leads.
func (s sightings) look(data map[string]string, own string,
	oldest, now time.Time) (standbys []inspect.Standby, gone map[string]*string) {
	maps.DeleteFunc(s, func(key string, _ sighting) bool { _, there := data[key]; return !there })
	gone = map[string]*string{}
	for key, text := range data {
		if old, ok := s[key]; !ok || old.text != text {
			s[key] = sighting{text, now}
		}
		var e entry
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Identity == "" || key == own ||
			s[key].at.Before(oldest) {
			gone[key] = nil
			continue
		}
		standbys = append(standbys, e.Standby)
	}
	slices.SortFunc(standbys, func(a, b inspect.Standby) int { return cmp.Compare(a.Identity, b.Identity) })
	return standbys, gone
}
