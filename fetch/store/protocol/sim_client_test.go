package protocol

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bowstring/schema"
)

// client is the Database that a process has.
type client struct {
	p *process
	r *replicas
}

var errSilent = fmt.Errorf("%w: no answer", schema.ErrUnavailable)

// call sends a message to a number of nodes, and waits for the answers of need.
func (c *client) call(ctx context.Context, kind string, to, need int, f func(node int)) error {
	w, p := c.r.w, c.p
	p.calls++
	w.note(kind, p.calls)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	hurt := slices.Contains(p.hurtAt, p.calls)
	if hurt && w.chance(2) {
		hurt = false
		if err := p.hurt(ctx); err != nil {
			return err
		}
	}
	answer, answers := make(chan struct{}), 0
	slow := time.Duration(0)
	if w.chance(w.faults.slow) {
		slow = w.between(0, answerWithin-time.Second/2)
	}
	more, lost, echo := w.disturb(kind)
	slow += more
	stall := w.stalls(p, kind)
	var long time.Duration
	if stall { // what it has sent arrives before it goes on, and both when others have collected
		long = rowLapses + w.between(20*time.Second, 2*time.Minute)
		slow = long - time.Second
	}
	for node := range to {
		d := slow + w.between(time.Millisecond, 20*time.Millisecond)
		switch {
		case lost, w.chance(w.faults.lose):
			continue
		case w.chance(w.faults.delay):
			d += w.between(0, late)
		case node == nodes-1 && w.chance(w.faults.lag):
			d += w.between(0, 30*time.Second)
		}
		if w.chance(w.faults.double) {
			w.after(d+w.between(0, late), func() { f(node) })
		}
		silent := w.chance(w.faults.silence)
		w.after(d, func() {
			f(node)
			if answers++; answers == need && !silent {
				w.after(echo+w.between(0, 10*time.Millisecond), func() {
					close(answer)
					w.poll()
				})
			}
		})
	}
	if stall {
		p.suspend(long)
		_ = w.wait(ctx, nil, 0)
	}
	if hurt {
		_ = p.hurt(ctx) // the answer comes, or not, as it would have
	}
	if err := w.wait(ctx, answer, w.faults.patience()); err != nil {
		return err
	}
	if !closed(answer) {
		return errSilent
	}
	return nil
}

// stalls says whether a process is suspended in a call, as one that collects.
func (w *world) stalls(p *process, kind string) bool {
	f := &w.faults
	if f.stall == "" || !strings.HasPrefix(kind, f.stall) || kind == "load "+Control {
		return false
	}
	return w.db.collecting.Run != "" && w.db.collecting.Holder == p.name && !w.anyFrozen()
}

// anyFrozen says whether some process is suspended.
func (w *world) anyFrozen() bool {
	return slices.ContainsFunc(w.procs, func(p *process) bool { return p.frozen })
}

// collectorFrozen says whether the process is suspended that collects, as far as others know.
func (w *world) collectorFrozen() bool {
	state := w.db.collecting
	frozen := func(p *process) bool { return p.frozen && p.name == state.Holder }
	return state.Run != "" && slices.ContainsFunc(w.procs, frozen)
}

// disturb returns what happens to a call of a kind: how late it arrives, whether it is
// lost, and how late its answer is.
func (w *world) disturb(kind string) (slow time.Duration, lost bool, answer time.Duration) {
	f := &w.faults
	switch kind {
	case "unsize", "unbytes", "untouch":
		if w.chance(f.deletions) {
			slow = w.between(0, late)
		}
	case "touch", "row", "whole":
		if w.chance(f.touches) {
			slow = w.between(0, f.patience()-time.Second/2)
		}
	case "scan":
		if w.chance(f.scans) {
			slow = w.between(0, f.patience()/2)
		}
	case "bytes":
		lost = w.chance(f.bytes) || f.stall == "unsize" && w.collectorFrozen()
	case "load " + Control, "peek " + Control:
		if w.chance(f.states) {
			answer = w.between(0, f.patience()-time.Second/2)
		}
	}
	return slow, lost, answer
}

// hurt suspends or ends the process.
func (p *process) hurt(ctx context.Context) error {
	w := p.w
	if w.faults.kills > 0 && (w.faults.suspends == 0 || w.chance(3)) {
		w.after(0, p.kill)
	} else {
		p.suspend(w.between(time.Second, late+time.Minute))
		if w.faults.clocks && w.chance(2) {
			p.clock = w.between(-time.Hour, time.Hour)
		}
	}
	return w.wait(ctx, nil, 0)
}

// one calls one node that speaks for all, and gives its first answer.
func one[T any](ctx context.Context, c *client, kind string, f func() T) (T, error) {
	var value T
	first := true
	err := c.call(ctx, kind, 1, 1, func(int) {
		if v := f(); first {
			value, first = v, false
		}
	})
	return value, err
}

func (c *client) Partitions(ctx context.Context) ([]string, error) {
	return one(ctx, c, "partitions", func() []string {
		var names []string
		for name, p := range c.r.partitions {
			if p.Version > 0 {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	})
}

func (c *client) Load(ctx context.Context, name string) (Partition, error) {
	return one(ctx, c, "load "+name, func() Partition { return c.r.settle(name).Partition })
}

func (c *client) Peek(ctx context.Context, name string, rows ...string) (Partition, error) {
	return one(ctx, c, "peek "+name, func() Partition {
		p := c.r.partition(name).Partition
		if len(rows) > 0 {
			p.Rows = maps.Clone(p.Rows)
			maps.DeleteFunc(p.Rows, func(row string, _ []byte) bool { return !slices.Contains(rows, row) })
		}
		return p
	})
}

func (c *client) Swap(ctx context.Context, name string, version int64, change Change) error {
	outcome, err := one(ctx, c, "swap "+name, func() error { return c.r.swap(name, version, change) })
	if err != nil && ctx.Err() == nil {
		return ErrUncertain
	} else if err != nil {
		return err
	}
	return outcome
}

func (c *client) Announce(ctx context.Context, m Member) error {
	return c.call(ctx, "announce", 1, 1, func(int) {
		r := c.r
		old := r.members[m.ID]
		if old != nil && old.Beat >= m.Beat {
			return
		}
		now := &simMember{m, r.w.now + rowLapses}
		r.members[m.ID] = now
		r.w.after(rowLapses, func() {
			if r.members[m.ID] == now {
				delete(r.members, m.ID)
				r.lapses[m.ID]++
				r.w.say(c.p, "its row lapses")
			}
		})
	})
}

func (c *client) Members(ctx context.Context) ([]Member, error) {
	return one(ctx, c, "members", func() []Member {
		var list []Member
		for _, id := range slices.Sorted(maps.Keys(c.r.members)) {
			list = append(list, c.r.members[id].Member)
		}
		return list
	})
}

func (c *client) Leave(ctx context.Context, id string) error {
	return c.call(ctx, "leave", 1, 1, func(int) { delete(c.r.members, id) })
}

func (c *client) Row(ctx context.Context, key schema.Key) (BlobRow, error) {
	return one(ctx, c, "row", func() BlobRow {
		row, _ := c.r.row(key, c.r.repaired(key))
		return row
	})
}

// write has all nodes hear of something, and a quorum answer.
func (c *client) write(ctx context.Context, kind string, key schema.Key, f func(*cell)) error {
	return c.call(ctx, kind, nodes, 2, func(node int) { f(c.r.cell(node, key)) })
}

func (c *client) Touch(ctx context.Context, ref schema.BlobRef, at Epoch) error {
	return c.write(ctx, "touch", ref.Key, func(n *cell) { n.touched = max(n.touched, at) })
}

func (c *client) Write(ctx context.Context, ref schema.BlobRef, data []byte, at Epoch) error {
	c.r.content[ref.Key] = data
	for i := range 2 {
		err := c.write(ctx, "bytes", ref.Key, func(n *cell) { n.bytes[i] = max(n.bytes[i], at) })
		if err != nil {
			return err
		}
	}
	c.r.w.say(c.p, "has written the bytes of %s in epoch %d", ref.Key.String()[:8], at)
	return c.write(ctx, "size", ref.Key, func(n *cell) { n.size = max(n.size, at) })
}

func (c *client) Whole(ctx context.Context, ref schema.BlobRef) (bool, error) {
	return one(ctx, c, "whole", func() bool { return c.r.repaired(ref.Key).whole() })
}

func (c *client) Read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	there, err := one(ctx, c, "read", func() bool {
		return c.r.merged(ref.Key, 0, 1, 2).whole()
	})
	if err != nil {
		return schema.Blob{}, err
	}
	if !there {
		return schema.Blob{}, fmt.Errorf("%w: blob %s", schema.ErrNotFound, ref.Key)
	}
	return schema.NewBlob(c.r.content[ref.Key], nil), nil
}

func (c *client) Scan(ctx context.Context, visit func(context.Context, BlobRow) error) error {
	keys := c.r.keys()
	for len(keys) > 0 {
		page := keys[:min(6, len(keys))]
		keys = keys[len(page):]
		rows, err := one(ctx, c, "scan", func() []BlobRow {
			var rows []BlobRow
			among := c.r.two()
			for _, key := range page {
				if row, ok := c.r.row(key, c.r.merged(key, among...)); ok {
					rows = append(rows, row)
				}
			}
			return rows
		})
		if err != nil {
			return err
		}
		for _, row := range rows {
			if err := visit(ctx, row); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *client) Delete(ctx context.Context, row BlobRow, before Epoch) error {
	key, upTo := row.Key, before-1
	c.r.w.say(c.p, "deletes %s as it was before %d", key.String()[:8], before)
	err := c.write(ctx, "unsize", key, func(n *cell) { n.sizeGone = max(n.sizeGone, upTo) })
	if err != nil {
		return err
	}
	err = c.write(ctx, "unbytes", key, func(n *cell) {
		n.bytesGone = max(n.bytesGone, upTo)
		c.r.w.oracle.deleted(key)
	})
	if err != nil {
		return err
	}
	return c.write(ctx, "untouch", key, func(n *cell) { n.touchedGone = max(n.touchedGone, upTo) })
}

func (c *client) Sync(context.Context) error { return nil }
