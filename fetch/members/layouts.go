package members

import (
	"context"
	"fmt"
	"sync"

	"bowstring/fetch/layout"
	"bowstring/schema"
)

const (
	// keptLayouts is how many layouts are kept in memory, of 256 KiB each, and keptClaims how many claims.
	keptLayouts = 16
	keptClaims  = 4096
	// A claim is a write that a reader makes: a row of some 150 bytes, kept for Options.Keep. A node makes so many at
	// once, and so many a second in the long run: 2.6 million in 30 days.
	claimsAtOnce    = 1000
	claimsPerSecond = 1
)

// layouts are those that were used of late, and claims that are known: neither ever changes.
type layouts struct {
	mu     sync.Mutex
	byName map[string]*layout.Layout
	names  []string // of byName, the oldest first
	claims map[claim]string
}

// claim is an epoch of a plan.
type claim struct {
	plan  string
	epoch uint64
}

func (l *layouts) get(name string) *layout.Layout {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byName[name]
}

func (l *layouts) keep(x *layout.Layout) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byName == nil {
		l.byName = map[string]*layout.Layout{}
	}
	if l.byName[x.Name()] != nil {
		return
	}
	if len(l.names) == keptLayouts {
		delete(l.byName, l.names[0])
		l.names = l.names[1:]
	}
	l.byName[x.Name()], l.names = x, append(l.names, x.Name())
}

func (l *layouts) claimed(c claim) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claims[c]
}

func (l *layouts) claim(c claim, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claims == nil || len(l.claims) >= keptClaims {
		l.claims = map[claim]string{} // they are in the store
	}
	l.claims[c] = name
}

// Layout implements resolve.Layouts: a layout by its name.
func (m *Members) Layout(ctx context.Context, name string) (*layout.Layout, error) {
	if l := m.layouts.get(name); l != nil {
		return l, nil
	}
	if l := layout.Lone(); l.Name() == name {
		return l, nil // of a ticket that a server gave out before it was in a cluster
	}
	b, err := m.opts.Shared.Layout(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("layout %s: %w", name, err)
	}
	record, err := layout.Parse(b)
	if err == nil && record.Name() != name {
		err = fmt.Errorf("its content has the name %s", record.Name())
	}
	if err != nil { // no mistake of the caller's
		return nil, fmt.Errorf("%w: layout %s: %s", schema.ErrDataLoss, name, err.Error())
	}
	l, err := m.opts.NewLayout(record)
	if err != nil {
		return nil, err
	}
	m.layouts.keep(l)
	return l, nil
}

// Reserve implements resolve.Layouts: the layout of an epoch of a plan. Where none was claimed, it is made of the
// view. Where the store is out of reach, there is no answer but an error: two nodes could give two.
func (m *Members) Reserve(ctx context.Context, plan string, epoch uint64, size int64,
	ranks []string) (*layout.Layout, error) {
	c := claim{plan, epoch}
	name := m.layouts.claimed(c)
	if name == "" {
		var err error
		if name, err = m.claim(ctx, c, size, ranks); err != nil {
			return nil, fmt.Errorf("the layout of epoch %d of plan %s: %w", epoch, plan, err)
		}
	}
	l, err := m.Layout(ctx, name)
	if err == nil {
		m.layouts.claim(c, name)
	}
	return l, err
}

func (m *Members) claim(ctx context.Context, c claim, size int64, ranks []string) (string, error) {
	name, err := m.opts.Shared.ClaimLayout(ctx, m.opts.Cluster, c.plan, c.epoch, "", m.opts.Keep)
	if err != nil || name != "" {
		return name, err
	}
	v := m.View()
	if len(v.Nodes) == 0 {
		return "", fmt.Errorf("%w: %w", schema.ErrUnavailable, errNoNodes)
	}
	// Where other jobs read more, nodes keep fewer blobs twice than there is room for beside this one: what a node does
	// not keep, its ranks are not given. See Route.
	record, err := layout.NewRecord(max(roundWants(size), roundWants(v.Wants)), v.Nodes, ranks)
	if err != nil {
		return "", err
	}
	// Whoever may read makes a row by it: so there are not more of them than this.
	if r := m.claims.Reserve(); r.Delay() > 0 {
		after := r.Delay()
		r.Cancel()
		return "", &schema.LimitError{
			Limit: "cluster.claims", After: after,
			Message: fmt.Sprintf("this node has claimed layouts for %d epochs at once, and may for %d a second",
				claimsAtOnce, claimsPerSecond),
		}
	}
	// The layout first: a claim never names one that is not there.
	if err := m.opts.Shared.PutLayout(ctx, record.Name(), record.Marshal(), 12*m.opts.Keep); err != nil {
		return "", err
	}
	return m.opts.Shared.ClaimLayout(ctx, m.opts.Cluster, c.plan, c.epoch, record.Name(), m.opts.Keep)
}
