package flight

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// LentStats is what another node was sent by way of this one, since the server was made.
type LentStats struct {
	Node    string `json:"node"`
	Blobs   int64  `json:"blobs"`
	Bytes   int64  `json:"bytes"`
	Refused int64  `json:"refused"` // asks that could not be answered with a blob
}

// maxBorrowers is how many nodes are told apart. What others were sent is counted to the node "".
const maxBorrowers = 4096

// lent counts what other nodes were sent.
type lent struct {
	mu     sync.Mutex
	byNode map[string]*lentTo // guarded by mu
}

type lentTo struct{ blobs, bytes, refused atomic.Int64 }

func (t *lentTo) add(blobs, bytes, refused int64) {
	t.blobs.Add(blobs)
	t.bytes.Add(bytes)
	t.refused.Add(refused)
}

// to returns the counters of a node.
func (l *lent) to(node string) *lentTo {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byNode == nil {
		l.byNode = map[string]*lentTo{}
	}
	if l.byNode[node] == nil && len(l.byNode) >= maxBorrowers {
		node = ""
	}
	t := l.byNode[node]
	if t == nil {
		t = &lentTo{}
		l.byNode[node] = t
	}
	return t
}

// Lent is what each other node was sent by way of this one, by name.
func (s *Server) Lent() []LentStats {
	s.lent.mu.Lock()
	defer s.lent.mu.Unlock()
	list := make([]LentStats, 0, len(s.lent.byNode))
	for name, t := range s.lent.byNode {
		list = append(list, LentStats{name, t.blobs.Load(), t.bytes.Load(), t.refused.Load()})
	}
	slices.SortFunc(list, func(a, b LentStats) int { return cmp.Compare(a.Node, b.Node) })
	return list
}
