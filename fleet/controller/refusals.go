package controller

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// limitLifetime is the time after which a learned limit is forgotten, as the hub's may have been raised.
const limitLifetime = 30 * time.Minute

// minLimit is the smallest limit, in bytes, that is learned: a smaller number counts something else.
const minLimit = 16 << 10

// hubLimit is the hub's limit of a work's manifests, learned from refusals. The zero value is no limit.
type hubLimit struct {
	bytes int    // of a work with several copies
	alone int    // of a copy in a work of its own; not below bytes
	words string // of the refusal that alone is learned from
}

// exceeds matches the whole refusal of OCM's webhook, with a limit in bytes, or in KiB as it was until 2023.
var exceeds = regexp.MustCompile(
	`^(?:admission webhook "[^"]*" denied the request: )?the size of manifests is (\d+) bytes which exceeds the (\d+)(k?) limit$`)

// hubsLimit returns the limit that the hub's refusal of a work shows, or the zero value if it has another reason. Size
// is that of the work's manifests. A refusal must name about this size, so that another webhook that quotes an object's
// text sets no limit. A refusal that names no limit, as that of a proxy, shows only that size is too much: works with
// several copies then have half of it, and a copy alone is tried below it.
func hubsLimit(err error, size int) hubLimit {
	limit := hubLimit{max(size/2, minLimit), size - 1, refusalText(err)}
	if !apierrors.IsRequestEntityTooLargeError(err) {
		found := exceeds.FindStringSubmatch(limit.words)
		if found == nil {
			return hubLimit{}
		}
		counted, err1 := strconv.Atoi(found[1])
		named, err2 := strconv.Atoi(found[2])
		if err1 != nil || err2 != nil || counted < size/2 || counted > 2*size {
			return hubLimit{}
		}
		if found[3] != "" {
			named *= 1024
		}
		limit.alone = min(named, size-1)
		limit.bytes = limit.alone
	}
	if limit.alone < minLimit {
		return hubLimit{}
	}
	limit.bytes = min(limit.bytes, limit.alone)
	return limit
}

// tighten returns the limit after a refusal of a work of some size, which shows another one. A refused work that is
// larger than works with several copies shows nothing about these.
func (l hubLimit) tighten(shown hubLimit, size int) hubLimit {
	switch {
	case shown.bytes == 0:
		return l
	case l.bytes == 0:
		return shown
	}
	if size <= l.bytes {
		l.bytes = min(l.bytes, shown.bytes)
	}
	if shown.alone < l.alone {
		l.alone, l.words = shown.alone, shown.words
	}
	l.bytes = min(l.bytes, l.alone)
	return l
}

// learn notes the limit that a refusal shows, and forgets it after limitLifetime.
func (c *controller) learn(err error, size int) {
	w := c.world
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.limit
	if w.limit = before.tighten(hubsLimit(err, size), size); w.limit == before {
		return
	}
	if before.bytes == 0 {
		time.AfterFunc(limitLifetime, c.forgetLimit)
	}
	c.log.Warn("the hub refuses large ManifestWorks: smaller ones are sent", "bytes", w.limit.bytes,
		"alone", w.limit.alone, "error", err)
}

// forgetLimit syncs the bundles with copies that the limit kept from being sent, without the limit.
func (c *controller) forgetLimit() {
	c.world.mu.Lock()
	c.world.limit = hubLimit{}
	c.world.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for b, k := range c.bundles {
		if slices.ContainsFunc(k.bundle.Problems, fleet.Problem.IsTooLarge) {
			c.world.bundles.press(b)
		}
	}
}

// refusalText returns the API server's message.
func refusalText(err error) string {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return status.ErrStatus.Message
	}
	return err.Error()
}

// reasonHubRefuses is that of a copy in a work that the hub refuses to store.
const reasonHubRefuses = "HubRefuses"

// refusalsOf returns the copies of a write that the hub refused.
func refusalsOf(w *fleet.Write, err error) (all []fleet.Problem) {
	for _, s := range w.Sources() {
		all = append(all, fleet.Problem{
			Source:  s,
			Cluster: w.Cluster,
			Reason:  reasonHubRefuses,
			Message: fmt.Sprintf("the hub refuses the ManifestWork: %s", refusalText(err)),
		})
	}
	return all
}

// setRefusals replaces what the hub refused of a bundle.
func (c *controller) setRefusals(b fleet.Source, now []fleet.Problem) {
	c.mu.Lock()
	before := c.refusals[b]
	if delete(c.refusals, b); len(now) > 0 {
		c.refusals[b] = now
	}
	c.mu.Unlock()
	c.tellProblems(b, before, now)
}

// refusal returns what the hub refused of a source's copies in a cluster, or nil.
func (c *controller) refusal(b, s fleet.Source, cluster string) *fleet.Problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.refusals[b] {
		if p.Source == s && p.Cluster == cluster {
			return &p
		}
	}
	return nil
}

// tellProblems marks the statuses of a bundle and of the sources of problems that have come or gone.
func (c *controller) tellProblems(b fleet.Source, before, now []fleet.Problem) {
	if len(before)+len(now) == 0 || reflect.DeepEqual(before, now) {
		return
	}
	c.world.statuses.tell(b)
	for _, p := range slices.Concat(before, now) {
		c.world.statuses.tell(p.Source)
	}
}
