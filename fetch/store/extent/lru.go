package extent

import "container/list"

// lru keeps values within a bound of bytes, and drops the least recently used ones. The last one that was
// added stays, however large it is. Its user locks it.
type lru[K comparable, V any] struct {
	limit, bytes int64
	entries      map[K]*list.Element
	order        list.List // of *lruEntry, the most recently used in front
	gone         func(V)   // called for evicted values
}

type lruEntry[K comparable, V any] struct {
	key   K
	value V
	size  int64
}

// get returns a value and makes it the most recently used one.
func (l *lru[K, V]) get(key K) (v V, ok bool) {
	e := l.entries[key]
	if e == nil {
		return v, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*lruEntry[K, V]).value, true
}

// add adds a value that is not there.
func (l *lru[K, V]) add(key K, v V, size int64) {
	if l.entries == nil {
		l.entries = map[K]*list.Element{}
	}
	l.entries[key] = l.order.PushFront(&lruEntry[K, V]{key, v, size})
	l.bytes += size
	for l.bytes > l.limit && l.order.Len() > 1 {
		l.remove(l.order.Back())
	}
}

func (l *lru[K, V]) remove(e *list.Element) {
	entry := l.order.Remove(e).(*lruEntry[K, V])
	delete(l.entries, entry.key)
	l.bytes -= entry.size
	if l.gone != nil {
		l.gone(entry.value)
	}
}

func (l *lru[K, V]) clear() {
	for l.order.Len() > 0 {
		l.remove(l.order.Back())
	}
}
