package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"bowstring/fetch"
	"bowstring/flight/catalog"
	"bowstring/flight/peer"
	"bowstring/schema"
)

// warmNode is the progress of one node with its part of a job.
type warmNode struct {
	Node   string `json:"node"`
	There  int64  `json:"there"`
	Stored int64  `json:"stored"`
	Bytes  int64  `json:"bytes"`
	Failed int64  `json:"failed"`
	Full   bool   `json:"full"`
	Done   bool   `json:"done"`
	Error  string `json:"error,omitempty"` // why the node has ended early
	seen   int64  // rows whose blobs the node has examined; 0 before its first report
}

// warmProgress is a result of the action warm: sums over all nodes, and the progress of
// each node if there are several.
type warmProgress struct {
	fetch.WarmProgress
	Nodes []*warmNode `json:"nodes,omitempty"`
}

// warming is the state of a warm on all nodes. It is safe for concurrent use.
type warming struct {
	node string // this one
	send func([]byte) error
	mu   sync.Mutex
	own  fetch.WarmProgress // of this node; guarded by mu
	all  warmProgress       // its Nodes are empty until another node reports; guarded by mu
}

// warmAll makes this node and all others read their parts of a job into their spills. It
// ends with the call, so also when the client goes away. It ends when the server drains,
// too: the jobs that need the data will run elsewhere.
func (s actionHandler) warmAll(ctx context.Context, cat *catalog.Catalog, job *fetch.Job, send func([]byte) error) error {
	if err := s.moved(); err != nil {
		return err
	}
	ctx, end, err := s.beginStream(ctx, "warm", job.ID())
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.draining, func() { cancel(context.Cause(s.draining)) })()
	w := &warming{node: s.node(), send: send}
	fail := func(err error) {
		if err != nil {
			cancel(err)
		}
	}
	var others sync.WaitGroup
	// Other nodes do not check rules. A restricted request would make them read hidden rows.
	if c := s.opts.Cluster; c != nil && c.WarmOthers != nil && !job.Request().Restricted() {
		tenant := fetch.CallerFrom(ctx).Tenant
		others.Go(func() {
			c.WarmOthers(ctx, job.Request().Marshal(), tenant, func(node string, said []byte, err error) {
				fail(w.other(node, said, err))
			})
		})
	}
	err = cat.Warm(ctx, job, func(p fetch.WarmProgress) { fail(w.here(p, false)) })
	if err != nil {
		cancel(err)
	}
	others.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return w.here(w.own, true)
}

// node returns this node's name, "" outside of a cluster.
func (s *Server) node() string {
	if s.opts.Cluster == nil {
		return ""
	}
	return s.opts.Cluster.Node
}

// here stores this node's progress and sends the sums. over is set when all nodes have
// ended.
func (w *warming) here(p fetch.WarmProgress, over bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own = p
	return w.sendLocked(over)
}

// other stores the report of another node, or the reason why it reports no more, and sends
// the sums. A failed node does not fail the warm.
func (w *warming) other(name string, said []byte, failed error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodeLocked(name)
	var p fetch.WarmProgress
	if failed == nil {
		failed = json.Unmarshal(said, &p)
	}
	if failed != nil {
		n.Error = schema.Quote(failed.Error())
	} else {
		n.take(p)
	}
	return w.sendLocked(false)
}

// take replaces the node's progress. It clears an earlier error.
func (n *warmNode) take(p fetch.WarmProgress) {
	*n = warmNode{Node: n.Node, There: p.There, Stored: p.Stored, Bytes: p.Bytes, Failed: p.Failed, Full: p.Full,
		Done: p.Done, seen: p.Seen}
}

// nodeLocked returns the entry of a node, which it adds if necessary.
func (w *warming) nodeLocked(name string) *warmNode {
	at := slices.IndexFunc(w.all.Nodes, func(n *warmNode) bool { return n.Node == name })
	if at < 0 {
		w.all.Nodes = append(w.all.Nodes, &warmNode{Node: name})
		at = len(w.all.Nodes) - 1
	}
	return w.all.Nodes[at]
}

// sendLocked sends the sums over all nodes. Seen is the minimum over the nodes and not
// their sum: every node passes over all rows.
func (w *warming) sendLocked(over bool) error {
	sum := w.own
	if len(w.all.Nodes) > 0 {
		w.nodeLocked(w.node).take(w.own)
		sum.There, sum.Stored, sum.Bytes, sum.Failed, sum.Full = 0, 0, 0, 0, false
		for _, n := range w.all.Nodes {
			sum.There += n.There
			sum.Stored += n.Stored
			sum.Bytes += n.Bytes
			sum.Failed += n.Failed
			sum.Full = sum.Full || n.Full
			if n.Error == "" && n.seen > 0 {
				sum.Seen = min(sum.Seen, n.seen)
			}
		}
	}
	sum.Done = over
	w.all.WarmProgress = sum
	return sendJSON(w.send, w.all)
}

// warmFor reads this node's part of a job that another node was asked to warm. The other
// node has checked the caller's rights; this one acts with the rights of nodes.
func (s *Server) warmFor(ctx context.Context, conn *peer.Conn) error {
	_, _, stopped, err := s.meet(ctx, conn, peer.WarmMethod)
	if err != nil {
		return err
	}
	defer stopped()
	first, err := conn.Receive(peer.MaxAsking)
	if err != nil {
		return err
	}
	var what peer.Warm
	if err := json.Unmarshal(first, &what); err != nil {
		return &schema.FieldError{Field: "warm", Got: schema.Quote(string(first)),
			Want: "a request and a tenant as JSON"}
	}
	req, err := schema.ParseRequest(what.Request)
	if err != nil {
		return err
	}
	if err := s.moved(); err != nil {
		return err
	}
	job, err := s.source.Nodes().Open(ctx, req)
	if err != nil {
		return err
	}
	defer job.Close()
	ctx, end, err := s.beginStream(ctx, "warm", job.ID())
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.draining, func() { cancel(context.Cause(s.draining)) })()
	var listening sync.WaitGroup
	defer listening.Wait()
	defer conn.Interrupt()
	listening.Go(func() { // the other node sends nothing more; the end of the stream shows that it left
		for {
			if _, err := conn.Receive(0); err != nil {
				if !errors.Is(err, io.EOF) {
					cancel(err)
				}
				return
			}
		}
	})
	ctx = fetch.WithCaller(ctx, fetch.Caller{Tenant: what.Tenant})
	err = s.source.Nodes().Warm(ctx, job, func(p fetch.WarmProgress) {
		b, err := encodeJSON(p)
		if err == nil {
			err = conn.Send(b)
		}
		if err != nil {
			cancel(fmt.Errorf("sending to the other node: %w", err))
		}
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}
