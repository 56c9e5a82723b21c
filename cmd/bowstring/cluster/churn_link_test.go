package cluster_test

import (
	"context"
	"fmt"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/peers"
	"bowstring/schema"
)

// churnLink is a way from a server to a node, without a network. As with a connection there is none to a program that
// speaks another protocol.
type churnLink struct {
	from *churnLife
	to   *churnNode
}

func (l *churnLink) way() [2]int  { return [2]int{l.from.node.index, l.to.index} }
func (l *churnLink) back() [2]int { return [2]int{l.to.index, l.from.node.index} }

// Up implements peers.Link.
func (l *churnLink) Up() bool {
	to := l.to.lives()
	if to != nil && to.protocol != l.from.protocol {
		l.to.world.total.add(&l.to.world.total.old, 1)
		return false
	}
	return to != nil
}

// Protocol implements peers.Link.
func (l *churnLink) Protocol() int {
	if l.Up() {
		return l.from.protocol
	}
	return 0
}

// Secure implements peers.Link.
func (*churnLink) Secure() bool { return true }

// Heard implements peers.Link: a node that runs and can be reached says all the time that it is there.
func (l *churnLink) Heard() time.Time {
	w := l.to.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet[l.back()] {
		return time.Time{}
	}
	return time.Now()
}

// Close implements peers.Link.
func (l *churnLink) Close() error {
	l.SendProgress(nil)
	return nil
}

// churnReport is what the streams of another server do; nil where it is gone.
type churnReport struct {
	from *churnLife
	list []peers.Progress
}

// SendProgress implements peers.Link. Progress that does not arrive is sent again.
func (l *churnLink) SendProgress(list []peers.Progress) {
	to, w := l.to.lives(), l.to.world
	w.mu.Lock()
	quiet := w.quiet[l.way()]
	w.mu.Unlock()
	if to == nil || quiet {
		return
	}
	select {
	case to.reports <- churnReport{l.from, list}:
	default:
	}
}

// follow has the engine know what others do.
func (l *churnLife) follow() {
	followers := map[*churnLife]*fetch.Follower{}
	defer func() {
		for _, f := range followers {
			f.Close()
		}
	}()
	for {
		select {
		case t := <-l.reports:
			f := followers[t.from]
			switch {
			case t.list == nil && t.from.gone.Err() != nil:
				if f != nil {
					f.Close()
					delete(followers, t.from)
				}
				continue
			case f == nil:
				f = l.engine.Follow()
				followers[t.from] = f
			}
			_ = f.Update(l.gone, t.list) // of streams that are not followed, as the store is away
		case <-l.gone.Done():
			return
		}
	}
}

// Get implements peers.Link.
func (l *churnLink) Get(ctx context.Context, ask peers.Ask) (schema.Blob, error) {
	n, w := l.to, l.to.world
	n.mu.Lock()
	there := n.life
	if there == nil || there.protocol != l.from.protocol {
		n.mu.Unlock()
		return schema.Blob{}, schema.ErrUnavailable
	}
	there.peerReads.Add(1)
	n.mu.Unlock()
	defer there.peerReads.Done()
	both, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(there.gone, stop)()
	if err := l.pass(both, l.way()); err != nil {
		return schema.Blob{}, err
	}
	a, err := there.answer(both, ask)
	if err != nil {
		return schema.Blob{}, err
	}
	defer a.Blob.Release()
	data := append([]byte(nil), a.Blob.Bytes()...) // as a network does
	if err := l.pass(both, l.back()); err != nil {
		return schema.Blob{}, err
	}
	w.mu.Lock()
	wrong := w.wrong[l.way()]
	w.mu.Unlock()
	if wrong {
		data[len(data)/2] ^= 1
		w.total.add(&w.total.damaged, 1)
	}
	if ask.Held {
		w.total.add(&w.total.held, 1)
		there.mu.Lock()
		there.handed[0]++
		there.handed[1] += int64(len(data))
		there.mu.Unlock()
	}
	if ask.Forward {
		w.total.add(&w.total.forward, 1)
	}
	return schema.NewBlob(data, nil), nil
}

// pass takes the time of a way, and as long as nothing passes on it.
func (l *churnLink) pass(ctx context.Context, way [2]int) error {
	if err := churnPause(ctx, time.Millisecond); err != nil {
		return err
	}
	w := l.to.world
	for {
		w.mu.Lock()
		quiet, heal := w.quiet[way], w.heal
		w.mu.Unlock()
		if !quiet {
			return nil
		}
		select {
		case <-heal:
		case <-ctx.Done():
			return schema.ErrUnavailable
		}
	}
}

// answer has a blob read for another node.
func (l *churnLife) answer(ctx context.Context, ask peers.Ask) (fetch.Answer, error) {
	answers := make(chan fetch.Answer, 1)
	b := l.engine.NewRequester(func(a fetch.Answer) { answers <- a })
	defer func() {
		b.Close()
		select {
		case a := <-answers: // it is not taken
			a.Blob.Release()
		default:
		}
	}()
	asked := fetch.PeerRead{ID: 1, Ref: ask.Ref, Snapshot: ask.Snapshot, Position: ask.Position, Forward: ask.Forward,
		Held: ask.Held}
	if err := b.Read(ctx, asked); err != nil {
		return fetch.Answer{}, fmt.Errorf("%w: %w", schema.ErrUnavailable, err)
	}
	select {
	case a := <-answers:
		return a, a.Err
	case <-ctx.Done():
		return fetch.Answer{}, schema.ErrUnavailable
	}
}
