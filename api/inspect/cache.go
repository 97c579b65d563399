package inspect

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// AskState is a question of a standby to the leader, answered with a State. No one else has it answered.
const AskState = "state"

// State is the state of the cluster that answers of the leader are of.
type State struct {
	Epoch    uint64 `json:"epoch"`
	Term     uint64 `json:"term"` // drawn at random when the leader began
	Revision uint64 `json:"revision"`
	// Standing changes with what nodes report of policies.
	Standing uint64 `json:"standing,omitempty"`
}

// Cached is the state of the cluster that an answer is of, and where it was found.
type Cached struct {
	Source   string `json:"source"` // in-process, memcached, or engine: it was computed
	Epoch    uint64 `json:"epoch,omitempty"`
	Term     uint64 `json:"term"`
	Revision uint64 `json:"revision"`
	// Standing changes with what nodes report of policies; 0: the answer does not depend on that.
	Standing uint64 `json:"standing,omitempty"`
	// Standby is the netmaster that answered, where it does not lead; empty: the leader did.
	Standby string `json:"standby,omitempty"`
}

// CachedHeader has Cached of an answer that comes through the API server, or of the web UI, as text.
const CachedHeader = "Flowkeep-Cached"

// String returns the text of the header.
func (c *Cached) String() string {
	text := fmt.Sprintf("source=%s; epoch=%d; revision=%d", c.Source, c.Epoch, c.Revision)
	if c.Standby != "" {
		text += "; standby=" + c.Standby
	}
	return text
}

// ParseCached returns what String of a Cached returned; nil: the text is of none.
func ParseCached(text string) *Cached {
	c := new(Cached)
	for field := range strings.SplitSeq(text, "; ") {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "source":
			c.Source = value
		case "standby":
			c.Standby = value
		case "epoch":
			c.Epoch, err = strconv.ParseUint(value, 10, 64)
		case "revision":
			c.Revision, err = strconv.ParseUint(value, 10, 64)
		}
		if err != nil {
			return nil
		}
	}
	if c.Source == "" {
		return nil
	}
	return c
}

// Cache answers AskCache.
type Cache struct {
	Entries   int           `json:"entries"` // in process
	Bytes     int           `json:"bytes"`   // of those
	Hits      uint64        `json:"hits"`
	Misses    uint64        `json:"misses"`
	Errors    uint64        `json:"errors"`
	Refused   uint64        `json:"refused"`  // values from memcached that did not open
	TooLarge  uint64        `json:"tooLarge"` // values with no room in process or in memcached
	Dropped   uint64        `json:"dropped"`  // values that were not sent to memcached because too many waited
	Sources   []CacheSource `json:"sources"`
	Servers   []string      `json:"servers,omitempty"`
	Connected bool          `json:"connected"`
	Problem   string        `json:"problem,omitempty"`
}

// CacheSource is how many look-ups a source of Cache answered, and how long that took on average, in nanoseconds.
type CacheSource struct {
	Source string        `json:"source"`
	Count  uint64        `json:"count"`
	Mean   time.Duration `json:"meanNanoseconds"`
}
