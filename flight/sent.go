package flight

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// SentStats is what another node was sent by way of this one, since the server was made.
type SentStats struct {
	Node    string `json:"node"`
	Blobs   int64  `json:"blobs"`
	Bytes   int64  `json:"bytes"`
	Refused int64  `json:"refused"` // asks that could not be answered with a blob
}

// maxRequesters is how many nodes are counted by name. Bytes to other clients are counted
// to the node "".
const maxRequesters = 4096

// sentToPeers counts what other nodes were sent.
type sentToPeers struct {
	mu     sync.Mutex
	byNode map[string]*sentTo // guarded by mu
}

type sentTo struct{ blobs, bytes, refused atomic.Int64 }

func (t *sentTo) add(blobs, bytes, refused int64) {
	t.blobs.Add(blobs)
	t.bytes.Add(bytes)
	t.refused.Add(refused)
}

// to returns the counters of a node.
func (l *sentToPeers) to(node string) *sentTo {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byNode == nil {
		l.byNode = map[string]*sentTo{}
	}
	if l.byNode[node] == nil && len(l.byNode) >= maxRequesters {
		node = ""
	}
	t := l.byNode[node]
	if t == nil {
		t = &sentTo{}
		l.byNode[node] = t
	}
	return t
}

// SentToPeers is what each other node was sent by way of this one, by name.
func (s *Server) SentToPeers() []SentStats {
	s.sentToPeers.mu.Lock()
	defer s.sentToPeers.mu.Unlock()
	list := make([]SentStats, 0, len(s.sentToPeers.byNode))
	for name, t := range s.sentToPeers.byNode {
		list = append(list, SentStats{name, t.blobs.Load(), t.bytes.Load(), t.refused.Load()})
	}
	slices.SortFunc(list, func(a, b SentStats) int { return cmp.Compare(a.Node, b.Node) })
	return list
}
