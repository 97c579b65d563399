package labelcache

import (
	"container/list"
	"sync"
)

// lru is the part of the cache in this process: the most recently used values. It is safe for concurrent use.
type lru struct {
	most int // bytes

	mu      sync.Mutex
	order   *list.List // of *item, the last used first
	entries map[string]*list.Element
	bytes   int
}

func newLRU(most int) *lru {
	return &lru{most: most, order: list.New(), entries: map[string]*list.Element{}}
}

func (l *lru) size() (entries, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.order.Len(), l.bytes
}

func (l *lru) get(query string, at Stamp) ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.entries[query]
	if found == nil || found.Value.(*item).at != at {
		return nil, false
	}
	l.order.MoveToFront(found)
	return found.Value.(*item).value, true
}

// fits reports whether there is room for an item, without all others.
func (l *lru) fits(i *item) bool { return i.cost() <= l.most }

// put keeps the newer of two values of a query, if it fits, and reports whether that is this one.
func (l *lru) put(i *item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.entries[i.query]; at != nil {
		if at.Value.(*item).at.isAfter(i.at) {
			return false
		}
		l.remove(at)
	}
	if !l.fits(i) {
		return true
	}
	l.entries[i.query] = l.order.PushFront(i)
	l.bytes += i.cost()
	for l.bytes > l.most {
		l.remove(l.order.Back())
	}
	return true
}

// isAfter reports whether a state is a later one than another.
func (s Stamp) isAfter(o Stamp) bool {
	if s.Epoch != o.Epoch || s.Term != o.Term {
		return s.Epoch > o.Epoch
	}
	return s.Revision > o.Revision || s.Revision == o.Revision && s.Standing > o.Standing
}

func (l *lru) remove(e *list.Element) {
	i := l.order.Remove(e).(*item)
	delete(l.entries, i.query)
	l.bytes -= i.cost()
}

// cost estimates the memory of an item.
func (i *item) cost() int { return len(i.query) + len(i.value) + 256 }
