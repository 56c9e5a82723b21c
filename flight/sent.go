package flight

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// SentStats counts the blobs that one other node has read through this node since the
// server was created.
type SentStats struct {
	Node    string `json:"node"`
	Blobs   int64  `json:"blobs"`
	Bytes   int64  `json:"bytes"`
	Refused int64  `json:"refused"` // requests that were answered without a blob
}

// maxRequesters bounds the nodes that are counted by name. A cluster is far smaller. The
// bound exists because without a cluster key any client may announce any node name. Further
// names share the counters of the node "".
const maxRequesters = 4096

// sentToPeers counts the answers to each other node. It is safe for concurrent use. Its
// zero value is empty.
type sentToPeers struct {
	mu     sync.Mutex
	byNode map[string]*sentTo // guarded by mu
}

// sentTo has the counters of one node. Connections of that node share them.
type sentTo struct{ blobs, bytes, refused atomic.Int64 }

func (t *sentTo) add(blobs, bytes, refused int64) {
	t.blobs.Add(blobs)
	t.bytes.Add(bytes)
	t.refused.Add(refused)
}

// to returns the counters of a node, which it creates on first use. The result stays valid
// for the life of the server.
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

// SentToPeers returns the counters of each other node, sorted by name. The slice is a copy.
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
