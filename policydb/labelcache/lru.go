package labelcache

import (
	"container/list"
	"sync"
)

// lru is what this process remembers: the most recently used entries. Safe for concurrent use.
type lru struct {
	most int

	mu      sync.Mutex
	order   *list.List // of item, the last used first
	entries map[string]*list.Element
}

func newLRU(most int) *lru {
	return &lru{most: most, order: list.New(), entries: map[string]*list.Element{}}
}

func (l *lru) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.order.Len()
}

func (l *lru) get(key string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.entries[key]
	if at == nil {
		return Entry{}, false
	}
	l.order.MoveToFront(at)
	return at.Value.(item).entry, true
}

// put keeps the newer of two entries and tells whether that is e.
func (l *lru) put(key string, e Entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.entries[key]; at != nil {
		if old := at.Value.(item).entry; old.Epoch > e.Epoch || old.Epoch == e.Epoch && old.Revision > e.Revision {
			return false
		}
		at.Value = item{key, e}
		l.order.MoveToFront(at)
		return true
	}
	l.entries[key] = l.order.PushFront(item{key, e})
	if l.order.Len() > l.most {
		delete(l.entries, l.order.Remove(l.order.Back()).(item).key)
	}
	return true
}
