package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"bowstring/fetch/object"
	"bowstring/fetch/peers"
	"bowstring/fetch/upcoming"
	"bowstring/schema"
)

// Progress is how far a stream is: see [peers.Progress].
type Progress = peers.Progress

// Progress lists what the streams of this node do, for other nodes to know what
// they will use next: see [prefetch.Set.Progress].
func (e *Engine) Progress() []Progress { return e.set.Progress() }

// SendProgress sends the other nodes the progress of this node's streams: see [prefetch.Set.SendProgress].
func (e *Engine) SendProgress() { e.set.SendProgress() }

// Wants is how many bytes the jobs read that this node knows of, by snapshot: see [upcoming.Jobs.Wants].
func (e *Engine) Wants() map[string]int64 { return e.upcoming.Wants() }

// maxFollowed is how many streams of one other node are followed.
const maxFollowed = 4096

// Follower follows the streams of another node, so that the spill keeps, of what this
// node owns, what they use next, and brings it before they ask. It is for one
// goroutine at a time.
type Follower struct {
	engine *Engine
	parts  map[uint64]*followed

	mu       sync.Mutex
	expected func() // called when what is expected has come; nil if nothing is. Guarded by mu
}

// followed is a stream of another node.
type followed struct {
	part        *upcoming.Part
	epochOffset int64 // the stream's when it was first heard of
	// Of one that could not be followed, what it serves, and when that is tried again: the store
	// may have been away.
	ticket []byte
	again  time.Time
}

// followAgain is how long a stream that could not be followed is left alone.
const followAgain = 10 * time.Second

// Follow returns a follower of another node.
func (e *Engine) Follow() *Follower { return &Follower{engine: e, parts: map[uint64]*followed{}} }

// Expect announces that Update will be called with a list. Until then, requests to this
// node wait a while for the jobs in the list: see [upcoming.Jobs.Expect]. Any goroutine
// may call it.
func (f *Follower) Expect(list []Progress) {
	if f.engine.upcoming == nil || !slices.ContainsFunc(list, func(p Progress) bool { return len(p.Ticket) > 0 }) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.expected == nil {
		f.expected = f.engine.upcoming.Expect()
	}
}

// met has nothing be expected any more, once the returned function is called.
func (f *Follower) met() func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	over := f.expected
	f.expected = nil
	if over == nil {
		return func() {}
	}
	return over
}

// Update processes the current list of the other node's streams. Streams that are not
// listed have ended. A ticket has to be sent only once. An error is about streams that
// are not followed; the others are followed all the same.
func (f *Follower) Update(ctx context.Context, list []Progress) error {
	err := f.hear(list)
	if f.engine.upcoming == nil {
		return err
	}
	defer f.met()()
	if len(list) > maxFollowed {
		return fmt.Errorf("%w: a node reports %d streams, and %d are followed", schema.ErrLimit, len(list),
			maxFollowed)
	}
	errs := []error{err}
	there := make(map[uint64]bool, len(list))
	for _, p := range list {
		if p.ID == 0 {
			continue // heard
		}
		there[p.ID] = true
		known := f.parts[p.ID]
		switch {
		case known != nil && known.ticket == nil:
			known.part.Advance(p.EpochOffset-known.epochOffset, p.Index)
			continue
		case known != nil && time.Now().Before(known.again):
			continue
		case known != nil:
			p.Ticket = known.ticket
		case len(p.Ticket) == 0:
			continue // its ticket comes in a later list
		}
		part, err := f.begin(ctx, &p)
		if err != nil {
			errs = append(errs, err)
			f.parts[p.ID] = &followed{ticket: p.Ticket, again: time.Now().Add(followAgain)}
			continue
		}
		f.parts[p.ID] = &followed{part: part, epochOffset: p.EpochOffset}
	}
	for id, known := range f.parts {
		if !there[id] {
			known.part.Leave()
			delete(f.parts, id)
		}
	}
	return errors.Join(errs...)
}

// shareProgress returns a function that adds this node's share of the budgets of buckets to the progress that it sends.
func shareProgress(requests *object.Requests, send func([]Progress)) func([]Progress) {
	if requests == nil || send == nil {
		return send
	}
	return func(list []Progress) {
		if shares := requests.Budget.Shares(); len(shares) > 0 {
			encoded, err := json.Marshal(shares)
			if err != nil {
				panic(err) // they are names and numbers
			}
			list = append(list, Progress{Shares: encoded})
		}
		send(list)
	}
}

// hear takes in what the other node allows itself of the budgets of buckets.
func (f *Follower) hear(list []Progress) error {
	requests := f.engine.opts.Requests
	if requests == nil {
		return nil
	}
	var shares []object.Share
	for _, p := range list {
		if p.ID != 0 || len(p.Shares) == 0 {
			continue
		}
		if err := json.Unmarshal(p.Shares, &shares); err != nil {
			return &schema.FieldError{Field: "shares", Got: fmt.Sprintf("%d bytes", len(p.Shares)),
				Want: "what a node allows itself of buckets, as JSON"}
		}
	}
	requests.Budget.Hear(f, shares)
	return nil
}

// begin finds the job of a stream, as it is now: the epochs that it has behind it are
// left out.
func (f *Follower) begin(ctx context.Context, p *Progress) (*upcoming.Part, error) {
	t, err := schema.ParseTicket(p.Ticket)
	if err != nil {
		return nil, err
	}
	if t.Shuffle != nil {
		shuffle := *t.Shuffle
		shuffle.Epoch += uint64(p.EpochOffset)
		t.Shuffle = &shuffle
	}
	if t.Epochs > 0 {
		t.Epochs = max(1, t.Epochs-p.EpochOffset)
	}
	j, err := f.engine.Open(ctx, t.Request)
	if err != nil {
		return nil, err
	}
	defer j.Close()
	if p.Index < 0 || p.Index > j.Plan().Rows() || int64(t.Rank) >= j.Request().WorldSize() || t.Rank < 0 {
		return nil, fmt.Errorf("%w: rank %d at row %d of a plan of %d", schema.ErrInvalid, t.Rank, p.Index,
			j.Plan().Rows())
	}
	return f.engine.upcoming.FollowElsewhere(j, f.engine.upcoming.Tenant(p.Tenant), t.Rank, p.Index, t.Epochs), nil
}

// Close forgets the other node's streams.
func (f *Follower) Close() {
	f.met()()
	if f.engine.opts.Requests != nil {
		f.engine.opts.Requests.Budget.Hear(f, nil)
	}
	for _, known := range f.parts {
		known.part.Leave()
	}
	f.parts = nil
}
